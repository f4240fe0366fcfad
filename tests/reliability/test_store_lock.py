"""Another program locks the store: requests that need no store go on, the others get 503 with Retry-After."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from served import served

from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys
from headrace.storage.request_log import read_log

BODY = {"prompt": "abc", "max_tokens": 4}
FILE = {"file": ("lines.jsonl", b"{}\n"), "purpose": (None, "batch")}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_lock_of_the_store_stops_only_what_needs_it(tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite3"
    database = Database(store)
    key = Keys(database).add("alice", KeyLimits())
    database.close()
    flags = ("--threads", "1", "--store", str(store), "--log-requests")
    with served(tiny, *flags) as server:
        url = f"http://127.0.0.1:{server.port}"
        with httpx.Client(
            base_url=url, timeout=60, trust_env=False, headers={"authorization": f"Bearer {key}"}
        ) as http:
            assert http.post("/v1/completions", json=BODY).status_code == 200
            replies: list[httpx.Response] = []
            with locked(store):
                needs = threading.Thread(target=lambda: replies.append(http.post("/v1/files", files=FILE)))
                needs.start()
                for _ in range(5):
                    assert http.post("/v1/completions", json=BODY).status_code == 200
                    assert http.get("/health").status_code == 200
                needs.join(60)
                assert len(replies) == 1
            [refused] = replies
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_busy")
            assert int(refused.headers["retry-after"]) >= 1
            assert http.post("/v1/files", files=FILE).status_code == 200
    database = Database(store)
    assert len([line for line in read_log(database) if line.status == 200]) == 7
    database.close()
