"""Requests of earlier servers are listed: of each key its own, in pages, without their content."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.requests import journaled
from headrace.economy.machine import MachineRecorder
from headrace.journal.frames import tag_of
from headrace.journal.log import Log
from headrace.journal.reader import RecordKind
from headrace.journal.records import EndedReply, OpenedRequest, encode, ended_request
from journal.killed_server import KilledServer, Reader
from journal.requests_of_every_kind import CHAT, STORY

SHORT: dict[str, Any] = {"messages": [{"role": "user", "content": "a secret word"}], "max_tokens": 3}
KEYS = {
    "alice": "sk-alice-0123456789abcdef",
    "bob": "sk-bob-0123456789abcdef",
    "boss": "sk-boss-0123456789abcdef",
}


def headers(who: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[who]}", **more}


@pytest.fixture
def server(tmp_path: Path) -> Generator[KilledServer]:
    keys = {
        "HEADRACE_API_KEY": f"{KEYS['alice']},{KEYS['bob']}",
        "HEADRACE_ADMIN_API_KEY": KEYS["boss"],
        "HEADRACE_LOG_CONTENT": "true",
    }
    made = KilledServer(tmp_path, environment=keys)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()


def listed(server: KilledServer, who: str, query: str = "") -> list[Any]:
    """All pages."""
    found: list[Any] = []
    after = ""
    while True:
        page = server.json("GET", f"/v1/requests?limit=2{query}{after}", **headers(who))
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def facts(found: list[Any]) -> list[Any]:
    """What is the same in every list."""
    left_out = ("duration_s", "trace_id")
    before = [one for one in found if one["id"].startswith("before")]
    return [{name: value for name, value in one.items() if name not in left_out} for one in before]


def test_they_are_there_after_a_kill(server: KilledServer) -> None:
    for number in range(5):
        who = "bob" if number == 2 else "alice"
        server.ask("POST", CHAT, SHORT, headers(who, **{"x-request-id": f"before-{number}"})).read()
    server.ask("POST", CHAT, {"messages": []}, headers("alice", **{"x-request-id": "wrong"})).read()
    secret = headers("alice", **{"x-request-id": "secret", "cache-control": "no-store"})
    server.ask("POST", CHAT, SHORT, secret).read()
    long = {"messages": STORY, "max_tokens": 500, "ignore_eos": True, "stream": True}
    cut = Reader(server, "cut", CHAT, long, headers("alice"))
    while not cut.seen:
        time.sleep(0.01)
    before = facts(listed(server, "alice"))
    server.kill()
    cut.cut()
    server.start()
    while (ids := [one["id"] for one in listed(server, "alice")])[0] != "cut":
        time.sleep(0.01)  # it is noted once it is made again
    assert ids == ["cut", "wrong", "before-4", "before-3", "before-1", "before-0"]
    server.ask("POST", CHAT, SHORT, headers("alice", **{"x-request-id": "after"})).read()
    while listed(server, "alice", "&status=running"):
        time.sleep(0.02)
    server.ask("POST", CHAT, SHORT, headers("alice", **{"x-request-id": "again"})).read()
    now = listed(server, "alice")
    assert sorted(one["id"] for one in now if "before" not in one["id"]) == ["after", "again", "cut", "wrong"]
    assert facts(now) == before
    assert [one["id"] for one in listed(server, "alice", "&status=failed")] == ["wrong"]
    assert [one["id"] for one in listed(server, "bob")] == ["before-2"]
    everybody = listed(server, "boss")
    assert len(everybody) == len(now) + 1 and {one["key"] for one in everybody} == {"key 1", "key 2"}
    assert "secret" not in json.dumps(everybody)
    mine = server.json("GET", "/v1/requests/before-1", **headers("alice"))
    assert (mine["status"], mine["output_tokens"], mine["model"]) == ("completed", 3, "mini")
    assert "a secret word" in mine["body"]
    for path in ("before-1", "before-1/explain"):
        assert server.ask("GET", f"/v1/requests/{path}", None, headers("bob")).status == 404
    for after in ("before-1", f"journal_{'0' * 32}", "never"):
        reply = server.ask("GET", f"/v1/requests?after={after}", None, headers("bob"))
        assert (reply.status, json.loads(reply.read())["error"]["param"]) == (400, "after")
    assert server.json("DELETE", "/v1/requests/before-1", **headers("alice"))["deleted"]
    assert "before-1" not in [one["id"] for one in listed(server, "alice")]


def test_a_table_fits_a_narrow_terminal(server: KilledServer) -> None:
    for _ in range(2):
        server.ask("POST", CHAT, SHORT, headers("alice")).read()
    screen, end = pty.openpty()
    command = [sys.executable, "-m", "headrace", "requests", "--port", str(server.port)]
    environment = {**os.environ, "COLUMNS": "80", "HEADRACE_API_KEY": KEYS["alice"]}
    subprocess.run(command, stdout=end, env=environment, check=True, timeout=60)
    os.close(end)
    shown = b""
    try:
        while part := os.read(screen, 65536):
            shown += part
    except OSError:
        pass
    os.close(screen)
    lines = shown.decode().splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 80
    assert {"TIME", "ID", "STATUS"} <= {*lines[0].split()}
    assert all(" req_" in line and "completed" in line for line in lines[1:])
    piped = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=60)
    assert {"TTFT", "KEY"} <= {*piped.stdout.split("\n")[0].split()}


def test_few_of_many_are_found_in_bounded_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page says that there is more, where nothing of what was looked at is wanted."""
    from api.fake import FakeModel
    from api.in_process import running_server

    monkeypatch.setattr(journaled, "AT_A_TIME", 20)
    log = Log(tmp_path)
    for number in range(1, 201):
        nonce = f"{number:032x}"
        opened = OpenedRequest(request_id=f"r{number}", nonce=nonce, path=CHAT, arrived_unix_s=number)
        ended = EndedReply(status=500 if number == 3 else 200, model="m", total_s=1.0)
        log.append(RecordKind.OPENED, number, tag_of(opened.request_id), encode(opened))
        log.append(RecordKind.ENDED, number, tag_of(opened.nonce), encode(ended))
        log.append(RecordKind.LISTED, number, tag_of(""), encode(ended_request(opened, ended)))
    log.write()
    log.close()
    with running_server(FakeModel(), journal={"folder": str(tmp_path)}) as server:
        http = server.http()
        first = http.get("/v1/requests?status=failed").json()
        assert first["data"] == [] and first["has_more"]
        found, pages = list[str](), 0
        page = first
        while page["has_more"]:
            page = http.get("/v1/requests", params={"status": "failed", "after": page["last_id"]}).json()
            found, pages = found + [one["id"] for one in page["data"]], pages + 1
        assert found == ["r3"] and pages <= 4
        whole = http.get("/v1/requests", params={"endpoint": CHAT, "limit": 1000}).json()["data"]
        assert [one["id"] for one in whole] == [f"r{number}" for number in range(200, 140, -1)]


def test_what_has_ended_a_moment_ago_is_found(tmp_path: Path) -> None:
    """Also where records are written now and then alone: the reply is read again, and listed, as soon as the
    first reader has seen its end."""
    from api.fake import FakeModel
    from api.in_process import running_server

    lazy = {"folder": str(tmp_path), "fsync": "off"}
    with running_server(FakeModel(), journal=lazy) as server:
        http = server.http()
        for number in range(6):
            name = f"once-{number}"
            sent = {**SHORT, "stream": True}
            said = http.post(CHAT, json=sent, headers={"x-request-id": name})
            again = http.get(f"/v1/requests/{name}/stream")
            assert (said.status_code, again.status_code, again.content) == (200, 200, said.content), name
            assert name in [one["id"] for one in http.get("/v1/requests").json()["data"]]
        assert http.delete("/v1/requests/once-5").status_code == 200
        assert http.get("/v1/requests/once-5/stream").status_code == 404


def test_the_end_comes_after_the_line_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed between them makes the request again, and books it then."""
    from api.fake import FakeModel
    from api.in_process import running_server

    may_write, write = threading.Event(), MachineRecorder._write

    def held(self: MachineRecorder, *what: Any) -> None:
        may_write.wait(60)
        write(self, *what)

    monkeypatch.setattr(MachineRecorder, "_write", held)
    folder = {"folder": str(tmp_path / "journal")}
    with running_server(FakeModel(), journal=folder, node_usd_per_hour=1.0) as server:
        http = server.http()
        assert http.post(CHAT, json=SHORT, headers={"x-request-id": "one"}).status_code == 200
        journal = server.server._service.journal
        assert journal is not None
        log = journal.journal.log
        assert len(log.unfinished()) == 1 and not log.ended()
        assert http.get("/v1/requests/one/stream").status_code == 200
        threading.Timer(0.2, may_write.set).start()
        assert http.delete("/v1/requests/one").status_code == 200  # it waits for that
        assert not log.unfinished()
