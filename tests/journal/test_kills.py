"""Servers and workers that are killed at any moment: every request goes on, byte for byte, once."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from headrace.journal.frames import scan
from headrace.journal.reader import RecordKind
from journal.clients import Client, Undisturbed
from journal.kill_rounds import Round
from journal.killed_server import KilledServer, Reader, without_ids
from journal.notes_server import with_notes
from journal.requests_of_every_kind import CHAT, STORY

KILLS = 6


@pytest.fixture
def server(tmp_path: Path) -> Generator[KilledServer]:
    made = KilledServer(tmp_path)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()


def test_every_kind_of_death(tmp_path: Path) -> None:
    """Of what clients, a batch, tools, the ledger and a webhook have got nothing is lost, differs or is there
    twice. `kill_rounds.py` does it for as long as one likes."""
    for name in ("mcp", "jsonschema_rs", "aiohttp"):
        pytest.importorskip(name, reason="needs headrace[tools] and headrace[adapt]")
    one = Round(tmp_path, random.Random(36), {}, clients=5)
    one.play(KILLS, faults=("server", "worker", "torn", "clock", "full", "both"))
    assert not one.problems, one.problems


@pytest.mark.soak
def test_a_thousand_kills(tmp_path: Path) -> None:
    undisturbed: Undisturbed = {}
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = Round(folder, random.Random(number), undisturbed)
        one.play(20)
        assert not one.problems, (number, one.problems)


def test_a_background_response_and_a_repeated_request_go_on(server: KilledServer) -> None:
    body = {
        "model": "mini",
        "input": "Sing a long song.",
        "background": True,
        "max_output_tokens": 200,
        "seed": 3,
    }
    made = server.json("POST", "/v1/responses", body)
    short = {**body, "max_output_tokens": 3}
    ended = server.json("POST", "/v1/responses", short)
    while server.json("GET", f"/v1/responses/{ended['id']}")["status"] not in ("completed", "incomplete"):
        time.sleep(0.02)
    chat = {"model": "mini", "messages": STORY, "max_tokens": 150, "ignore_eos": True}
    keyed = {"idempotency-key": "k1", "x-request-id": "keyed"}
    first = Reader(server, "keyed", CHAT, {**chat, "stream": True}, keyed)
    other = Reader(server, "plain", CHAT, {**chat, "stream": True})
    time.sleep(0.3)
    server.kill()
    other.cut()
    first.cut()
    server.start()
    other.go_on()
    repeated = server.ask("POST", CHAT, {**chat, "stream": True}, {"idempotency-key": "k1"})
    assert repeated.headers["idempotent-replayed"] == "true"
    again = repeated.read()
    assert again.startswith(first.seen) and again.endswith(b"data: [DONE]\n\n")
    assert server.ask("GET", "/v1/requests/keyed/stream").read() == again
    other.join()
    while (now := server.json("GET", f"/v1/responses/{made['id']}"))["status"] not in (
        "completed",
        "incomplete",
    ):
        assert now["status"] in ("queued", "in_progress"), now
        time.sleep(0.05)
    events = server.ask("GET", f"/v1/responses/{made['id']}?stream=true").read()
    last = server.ask("GET", f"/v1/responses/{made['id']}?stream=true&starting_after=5").read()
    assert events.endswith(last) and b'"sequence_number":6' in last.split(b"\n\n")[0]
    of_the_ended = server.ask("GET", f"/v1/responses/{ended['id']}?stream=true").read()
    assert b"response.incomplete" in of_the_ended or b"response.completed" in of_the_ended


def test_an_end_that_was_not_noted_is_the_same_again(server: KilledServer) -> None:
    """The client has seen all of it, also when it ended; the server was killed before it had noted that."""
    body = {"model": "mini", "input": "Hi there", "stream": True, "max_output_tokens": 30}
    reader = Reader(server, "seen", "/v1/responses", body)
    reader.join()
    assert b'"completed_at":1' in reader.seen
    server.kill()
    [path] = server.journal.glob("*.log")
    records = scan(path.read_bytes()).columns
    if RecordKind.ENDED in records.kind:  # else the kill came first
        os.truncate(path, records.at[records.kind.index(RecordKind.ENDED)])
    time.sleep(1.1)  # the next second
    server.start()
    assert server.ask("GET", "/v1/requests/seen/stream").read() == reader.seen


def test_a_deleted_request_is_in_no_file(server: KilledServer) -> None:
    secret = "XYZZY-PLUGH"
    body = {"model": "mini", "messages": [{"role": "user", "content": f"Say {secret}"}], "max_tokens": 5}
    reply = server.ask("POST", CHAT, body, {"x-request-id": "secret"})
    reply.read()
    kept = {"model": "mini", "input": f"Say {secret}", "max_output_tokens": 5}
    response = server.json("POST", "/v1/responses", kept)
    assert server.ask("GET", "/v1/requests/secret/stream").status == 200
    assert any(secret.encode() in one.read_bytes() for one in server.journal.iterdir())
    for request_id in ("secret", response["id"]):
        assert server.json("DELETE", f"/v1/requests/{request_id}")["deleted"] is True
    assert server.ask("GET", "/v1/requests/secret/stream").status == 404
    server.kill(15)
    for path in server.folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_health_names_damage(server: KilledServer) -> None:
    server.ask(
        "POST", CHAT, {"model": "mini", "messages": STORY, "max_tokens": 5}, {"x-request-id": "a"}
    ).read()
    server.kill(15)
    [path] = server.journal.glob("*.log")
    path.write_bytes(path.read_bytes() + b"half a record")
    server.start()
    journal = server.json("GET", "/health")["journal"]
    assert path.name in json.dumps(journal["damages"])
    assert journal["state"] == "damaged"
    assert server.ask("GET", "/v1/requests/a/stream").status == 200


def test_an_agent_goes_on(tmp_path: Path) -> None:
    """Its steps are computed again with the events that they had; calls of tools that have ended are not made
    again."""
    pytest.importorskip("mcp", reason="needs headrace[tools]")
    pytest.importorskip("duckdb", reason="needs headrace[data]")
    (tmp_path / "people.csv").write_text("name,age\nAnn,30\nBob,40\n")
    datasets = json.dumps({"people": f"file:{tmp_path}/people.csv"})
    server = KilledServer(tmp_path, "--datasets", datasets)
    server.start()
    body = {
        "model": "mini",
        "stream": True,
        "seed": 5,
        "tools": [{"type": "sql"}],
        "max_output_tokens": 120,
        "input": "How many rows does the table people have? Use sql.",
        "budget": {"steps": 6},
    }
    try:
        undisturbed = Reader(server, "undisturbed", "/v1/responses", body)
        undisturbed.join()
        killed = Reader(server, "killed", "/v1/responses", body)
        while killed.seen.count(b"\n\n") < undisturbed.seen.count(b"\n\n") // 2:
            time.sleep(0.005)
        server.kill()
        killed.cut()
        server.start()
        killed.go_on()
        killed.join()
        assert without_ids(killed.seen) == without_ids(undisturbed.seen)
        assert server.ask("GET", "/v1/requests/killed/stream").read() == killed.seen
        called = [one for one in killed.seen.split(b"\n\n") if b"event: response.mcp_call.in_progress" in one]
        expected = [one for one in undisturbed.seen.split(b"\n\n") if b"response.mcp_call.in_progress" in one]
        assert len(called) == len(expected)
        print(len(called), undisturbed.seen.count(b"\n\n"))
    finally:
        server.kill()


def test_a_call_of_a_tool_that_was_cut_off_is_asked_about(tmp_path: Path) -> None:
    """The stream goes on after the event that said that the call was made, and it is not made again."""
    pytest.importorskip("mcp", reason="needs headrace[tools]")
    server = KilledServer(tmp_path, environment=with_notes(tmp_path, "--seconds=30"))
    server.start()
    try:
        one = Client(server, "agent", "agent", 1)
        while not (tmp_path / "notes").exists() or not (tmp_path / "notes").read_text():
            time.sleep(0.01)
        server.kill()
        server.start()
        one.join()
        assert b"response.mcp_call.failed" in one.seen and b"mcp_approval_request" in one.seen
        assert server.ask("GET", f"/v1/requests/{one.name}/stream").read() == one.seen
        assert len((tmp_path / "notes").read_text().splitlines()) == 1
    finally:
        server.kill()


def test_a_provider_is_not_paid_twice(tmp_path: Path) -> None:
    """Its answer cannot be continued: that is said, and it is not asked again."""
    pytest.importorskip("aiohttp", reason="needs headrace[gateway]")
    asked: list[str] = []

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            delta = {"index": 0, "delta": {"role": "assistant", "content": "Once"}, "finish_reason": None}
            chunk = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [delta],
            }
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.connection.recv(1)  # until the server is gone

        def log_message(self, format: str, *args: object) -> None:
            pass

    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    Thread(target=provider.serve_forever, daemon=True).start()
    named = {"kind": "vllm", "base_url": f"http://127.0.0.1:{provider.server_port}/v1", "direct": True}
    far = {"HEADRACE_PROVIDERS": json.dumps({"far": named})}
    server = KilledServer(tmp_path, environment=far)
    server.start()
    try:
        body = {"model": "far/m", "messages": STORY, "max_tokens": 50, "stream": True}
        reader = Reader(server, "remote", CHAT, body)
        while b"Once" not in reader.seen:
            time.sleep(0.01)
        server.kill()
        reader.cut()
        server.start()
        reply = server.ask("GET", "/v1/requests/remote/stream")
        assert reply.status == 409 and json.loads(reply.read())["error"]["code"] == "not_resumable"
        command = [sys.executable, "-m", "headrace", "replay", "remote", "--journal", str(server.journal)]
        again = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | far)
        assert again.returncode == 1 and "not served here" in again.stdout, again
        assert len(asked) == 1
    finally:
        server.kill()
        provider.shutdown()
        provider.server_close()


@pytest.mark.parametrize(
    "change",
    [
        {"HEADRACE_KV_CACHE_DTYPE": "f32"},
        pytest.param({"HEADRACE_ISA": "portable"}, marks=pytest.mark.nightly),
    ],
)
def test_what_was_computed_otherwise_does_not_go_on(tmp_path: Path, change: dict[str, str]) -> None:
    """Other caches or kernels may give other bytes, and the text so far would not tell."""
    server = KilledServer(tmp_path)
    server.start()
    try:
        body = {"model": "mini", "messages": STORY, "max_tokens": 500, "ignore_eos": True, "stream": True}
        reader = Reader(server, "other", CHAT, body)
        while not reader.seen:
            time.sleep(0.01)
        server.kill()
        reader.cut()
        server = KilledServer(tmp_path, environment=change)
        server.start()
        reply = server.ask("GET", "/v1/requests/other/stream")
        said = json.loads(reply.read())["error"]
        assert (reply.status, said["code"]) == (409, "not_resumable") and "b0." in said["message"]
    finally:
        server.kill()


def test_a_folder_that_is_removed_is_said(server: KilledServer) -> None:
    short = {"model": "mini", "messages": STORY, "max_tokens": 2}
    assert server.ask("POST", CHAT, short).status == 200
    shutil.rmtree(server.journal)
    statuses: list[int] = []
    while 507 not in statuses:  # it is looked for once a second
        assert len(statuses) < 200
        statuses.append(server.ask("POST", CHAT, short).status)
        time.sleep(0.05)
    assert "removed by somebody" in server.json("GET", "/health")["journal"]["problem"]


@pytest.mark.parametrize("policy", ["refuse", pytest.param("pause", marks=pytest.mark.nightly)])
def test_a_full_disk_is_said(tmp_path: Path, policy: str) -> None:
    """No file of the server may grow, as on a disk that is full."""
    journal = json.dumps({"folder": str(tmp_path / "journal"), "on_full": policy})
    server = KilledServer(tmp_path, journal=journal)
    server.start()
    body = {"model": "mini", "messages": STORY, "max_tokens": 60, "ignore_eos": True, "stream": True}
    try:
        assert server.process is not None
        pid, limits = server.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
        running = Reader(server, "running", CHAT, body)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, limits[1]))
        running.join()  # it goes on
        server.ask("POST", CHAT, body).read()  # may be the one that finds out
        reply = server.ask("POST", CHAT, body)
        text = reply.read()
        if policy == "refuse":
            assert reply.status == 507 and b"journal_unwritable" in text
        else:
            assert reply.status == 200 and b"would be lost if the server were killed" in text
        assert server.json("GET", "/health")["journal"]["state"] == "paused"
        metrics = server.ask("GET", "/metrics").read().decode()
        found = re.search(r"^headrace_journal_dropped_total\{[^}]*\} (\S+)", metrics, re.MULTILINE)
        assert found is not None and float(found[1]) > 0
        assert re.search(r"^headrace_journal_paused\{[^}]*\} 1.0$", metrics, re.MULTILINE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        time.sleep(1.1)
        reply = server.ask("POST", CHAT, body, {"x-request-id": "after"})
        assert reply.status == 200 and reply.read().endswith(b"[DONE]\n\n")
        while server.json("GET", "/health")["journal"]["running"]:
            time.sleep(0.02)
        server.kill()
        server.start()
        assert server.ask("GET", "/v1/requests/after/stream").read().endswith(b"[DONE]\n\n")
        assert server.json("GET", "/health")["journal"]["resumed"] == 0
    finally:
        server.kill()


def test_requests_of_stored_keys_go_on_for_these_alone(tmp_path: Path) -> None:
    server = KilledServer(tmp_path)
    keys: list[str] = []
    for name in ("alice", "bob"):
        command = [sys.executable, "-m", "headrace", "keys", "add", name, "--json"]
        made = subprocess.run(
            [*command, "--store", str(tmp_path / "store.sqlite3")], stdout=subprocess.PIPE, check=True
        )
        keys.append(json.loads(made.stdout)["key"])
    alice, bob = ({"authorization": f"Bearer {key}"} for key in keys)
    server.start()
    body = {"model": "mini", "messages": STORY, "max_tokens": 150, "ignore_eos": True, "stream": True}
    try:
        reader = Reader(server, "same-id", CHAT, body, alice)
        while not reader.seen:
            time.sleep(0.005)
        assert server.ask("GET", "/v1/requests/same-id", None, bob).status == 404
        assert json.loads(server.ask("GET", "/v1/requests", None, bob).read())["data"] == []
        assert server.ask("DELETE", "/v1/requests/same-id", None, bob).status == 404
        server.kill()
        reader.cut()
        server.start()
        server.ask("POST", CHAT, {**body, "max_tokens": 2}, {**bob, "x-request-id": "same-id"}).read()
        whole = server.ask("GET", "/v1/requests/same-id/stream", None, alice).read()
        assert whole.startswith(reader.seen) and whole.endswith(b"[DONE]\n\n")
        theirs = server.ask("GET", "/v1/requests/same-id/stream", None, bob).read()
        assert not theirs.startswith(reader.seen) and theirs.endswith(b"[DONE]\n\n")
        assert server.ask("DELETE", "/v1/requests/same-id", None, bob).status == 200
        assert server.ask("GET", "/v1/requests/same-id/stream", None, bob).status == 404
        assert server.ask("GET", "/v1/requests/same-id/stream", None, alice).read() == whole
    finally:
        server.kill()
