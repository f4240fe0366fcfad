"""Idempotency-Key: a request is computed once, however often and from where it is asked for."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake import FakeModel
from in_process import Running, running_server

from headrace.api.http import idempotency
from headrace.errors import EngineStopped
from headrace.storage import idempotent_replies
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}
STREAM = BODY | {"stream": True}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running_server(FakeModel(), store=tmp_path / "store.sqlite3") as running:
        yield running


def ask(server: Running, key: str, body: dict[str, Any] = BODY, **headers: str) -> httpx.Response:
    return server.http().post(CHAT, json=body, headers={"Idempotency-Key": key} | headers)


def computed(server: Running) -> int:
    return len(server.model.engine.submitted)


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
def test_the_second_request_gets_the_reply_of_the_first(server: Running, body: dict[str, Any]) -> None:
    first = ask(server, "one", body)
    again = ask(server, "one", body)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert computed(server) == 1
    assert ask(server, "two", body).content != first.content  # it has an id of its own
    assert computed(server) == 2


def test_another_body_or_path_with_the_same_key(server: Running) -> None:
    assert ask(server, "one").status_code == 200
    refused = ask(server, "one", BODY | {"max_tokens": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    other = server.http().post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 3}, headers={"Idempotency-Key": "one"}
    )
    assert other.status_code == 200
    assert computed(server) == 2


def test_keys_of_accounts_are_their_own(tmp_path: Path) -> None:
    with running_server(FakeModel(), store=tmp_path / "s.sqlite3", api_key=("a", "b")) as server:
        mine = ask(server, "one", authorization="Bearer a")
        assert ask(server, "one", authorization="Bearer b").json()["id"] != mine.json()["id"]
        assert ask(server, "one", authorization="Bearer a").content == mine.content
        assert ask(server, "one", authorization="Bearer c").status_code == 401


def test_many_at_once_are_computed_once(server: Running) -> None:
    server.model.engine.pause_s = 0.01
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: ask(server, "one", STREAM).content, range(8)))
    assert len(set(replies)) == 1 and replies[0].endswith(b"data: [DONE]\n\n")
    assert computed(server) == 1


def test_a_client_that_lost_its_connection_gets_the_whole(server: Running) -> None:
    server.model.engine.pause_s = 0.01
    with server.http().stream("POST", CHAT, json=STREAM, headers={"Idempotency-Key": "one"}) as reply:
        lines = reply.iter_lines()
        first = next(line for line in lines if line)
    whole = ask(server, "one", STREAM)
    assert whole.text.startswith(first) and whole.text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in whole.text
    assert computed(server) == 1


def test_errors_are_not_kept(server: Running) -> None:
    assert ask(server, "one", BODY | {"n": 0}).status_code == 400
    server.model.engine.failure = EngineStopped("the engine failed")
    assert b"engine_stopped" in ask(server, "one", STREAM).content
    server.model.engine.failure = None
    right = ask(server, "one", STREAM)
    assert "idempotent-replayed" not in right.headers and right.text.endswith("data: [DONE]\n\n")
    assert ask(server, "one", STREAM).content == right.content


@pytest.mark.parametrize("key", ["", "x" * 256, "é"])
def test_a_bad_key(server: Running, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    refused = server.http().post(CHAT, json=BODY, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_idempotency_key")


def test_a_reply_outlives_the_server(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite3"
    with running_server(FakeModel(), store=store) as server:
        first = ask(server, "one", STREAM)
    with running_server(FakeModel(), store=store) as server:
        again = ask(server, "one", STREAM)
        assert again.content == first.content
        assert re.match(r"text/event-stream", again.headers["content-type"])
        assert ask(server, "one").status_code == 422
        assert computed(server) == 0


def test_what_is_too_large_is_computed_again(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_REPLY_BYTES", 100)
    first = ask(server, "one", STREAM)
    assert first.text.endswith("data: [DONE]\n\n")
    assert ask(server, "one", STREAM).status_code == 200
    assert computed(server) == 2


def test_the_oldest_replies_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "s.sqlite3"
    monkeypatch.setattr(idempotent_replies, "MAX_BYTES", 3000)
    with running_server(FakeModel(), store=store) as server:
        ids = [ask(server, str(number)).json()["id"] for number in range(12)]
        assert ask(server, "11").json()["id"] == ids[11]
        assert ask(server, "0").json()["id"] != ids[0]
    with sqlite3.connect(store) as database:
        [(size,)] = database.execute("SELECT sum(size_bytes) FROM idempotent_replies").fetchall()
    assert size <= 3000


def upload(server: Running, content: bytes, boundary: str, name: str = "a.jsonl") -> httpx.Response:
    parts = [("purpose", b"batch", ""), ("file", content, f'; filename="{name}"')]
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"{more}\r\n\r\n'.encode()
        + value
        + b"\r\n"
        for field, value, more in parts
    )
    kind = f"multipart/form-data; boundary={boundary}"
    headers = {"Idempotency-Key": "one", "Content-Type": kind}
    return server.http().post("/v1/files", content=body + f"--{boundary}--\r\n".encode(), headers=headers)


@pytest.mark.parametrize("size", [10, 300_000], ids=["one part", "many parts"])
def test_another_upload_with_the_same_key_is_refused(server: Running, size: int) -> None:
    first = upload(server, b"a" * size, "boundary-" + 20 * "1")
    assert first.status_code == 200
    again = upload(server, b"a" * size, "longer-boundary-" + 40 * "2")
    assert again.json()["id"] == first.json()["id"] and again.headers["idempotent-replayed"] == "true"
    for other in (b"b" * size, b"a" * (size - 1), b"a" * (size + 1), b"a" * (size - 1) + b"b"):
        refused = upload(server, other, "boundary-" + 20 * "3")
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert upload(server, b"a" * size, "boundary-" + 20 * "1", "b.jsonl").status_code == 422
    assert len(server.http().get("/v1/files").json()["data"]) == 1


def test_the_digest_of_a_form_does_not_depend_on_how_it_arrives() -> None:
    drawn, boundary = random.Random(1), b"aabaab-aab"
    scope = {"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=" + boundary)]}
    for _ in range(300):
        body = b"".join(drawn.choices([boundary, b"a", b"aab", b"-", b"b"], k=30))
        digests = set[bytes]()
        for most in (1, 7, 1000):
            digest = idempotency.BodyDigest(scope)
            for at in range(0, len(body), most):
                digest.update(body[at : at + most])
            digests.add(digest.digest())
        assert len(digests) == 1, body


def test_a_new_key_of_an_old_name_does_not_get_the_replies_of_the_old_one(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite3"
    keys = Keys(Database(store))
    with running_server(FakeModel(), store=store) as server:
        old = keys.add("team", KeyLimits())
        time.sleep(1.1)  # until the server has read it
        first = ask(server, "one", authorization=f"Bearer {old}")
        assert first.status_code == 200
        keys.revoke("team")
        new = keys.add("team", KeyLimits())
        time.sleep(1.1)
        other = ask(server, "one", authorization=f"Bearer {new}")
        assert other.status_code == 200 and other.json()["id"] != first.json()["id"]


def test_the_query_is_part_of_the_request(server: Running) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
    path, headers = "/v1beta/models/fake/model:streamGenerateContent", {"Idempotency-Key": "one"}
    listed = server.http().post(path, json=body, headers=headers)
    events = server.http().post(path + "?alt=sse", json=body, headers=headers)
    assert (listed.status_code, events.status_code) == (200, 200)
    assert listed.text.startswith("[") and events.text.startswith("data:")
