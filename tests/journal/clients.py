"""Clients that nothing discourages: they read on after any number of deaths of their server."""

from __future__ import annotations

import http.client
import http.server
import json
import math
import re
import threading
import time
from collections import Counter
from typing import Any

from journal.killed_server import KilledServer, without_ids
from journal.requests_of_every_kind import STORY, kinds

REFUSED = (429, 503, 507, 529)
PATIENCE_S = 240.0
AT_A_TIME = 10
Undisturbed = dict[tuple[str, int], list[Any]]
"""What requests of a kind and a seed say where nothing disturbs them."""


class Client:
    """Sends one request, and reads its reply across any number of deaths of the server."""

    def __init__(self, server: KilledServer, name: str, kind: str, seed: int) -> None:
        self.name, self.kind, self.seed, self.seen = name, kind, seed, b""
        path, body = all_kinds(seed)[kind]
        self._server, self._path, self._body = server, path, body
        self._end = b"\n" if path.startswith("/api/") else b"\n\n"
        self._is_stream = path.startswith("/api/") or bool(body.get("stream"))
        self.is_whole, self.problem = False, ""
        self.until_s = math.inf  # while servers are killed nobody gives up
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        attempt, has_id, is_known = 0, False, False
        while not self.is_whole and not self.problem:
            if time.monotonic() > self.until_s:
                self.problem = "it did not end"
                return
            try:
                was_asked = has_id
                if has_id:
                    after = {"last-event-id": str(self.events - 1)} if self.events else {}
                    reply = self._server.ask("GET", f"/v1/requests/{self.name}/stream", None, after)
                else:
                    attempt += 1
                    self.name = f"{self.name.partition('.')[0]}.{attempt}"
                    headers = {"x-request-id": self.name}
                    has_id = True  # should this fail, it may go on by its id
                    reply = self._server.ask("POST", self._path, self._body, headers)
                with reply:
                    if reply.status in REFUSED and not (was_asked and reply.status == 507):
                        has_id = was_asked
                        time.sleep(0.05)
                        continue
                    if reply.status == 404 and was_asked and not is_known:
                        has_id = False  # the server died before it was recorded, and nothing was seen
                        continue
                    if reply.status != 200:
                        self.problem = f"{reply.status} {reply.read()[:300]!r} has_id={has_id}"
                        return
                    is_known = True
                    while part := reply.read1(65536):
                        self.seen += part
                    self.is_whole = reply.isclosed() and self._has_end()
                    if self._is_stream and reply.isclosed() and not self.is_whole:
                        self.problem = f"it ended with {self.seen[-400:]!r}"
            except (OSError, http.client.HTTPException):
                pass
            if not self.is_whole:
                self._cut()
                time.sleep(0.02)

    def join(self) -> None:
        """Wait for the end, which no death disturbs any more."""
        self.wait()
        assert self.is_whole, (self.name, self.kind, self.problem)

    def wait(self) -> None:
        """The same, whatever comes of it."""
        self.until_s = time.monotonic() + PATIENCE_S
        self.thread.join(PATIENCE_S + 60)

    @property
    def events(self) -> int:
        """Whole events that were seen."""
        return self.seen.count(self._end) if self._is_stream else 0

    def _has_end(self) -> bool:
        if self._path.startswith("/api/"):
            return b'"done":true' in self.seen
        if not self._is_stream:
            try:
                json.loads(self.seen)
            except ValueError:
                return False
            return True
        marks = (b"[DONE]", b"event: message_stop", b"event: response.completed")
        return any(one in self.seen for one in (*marks, b"event: response.incomplete"))

    def _cut(self) -> None:
        """Keep whole events alone."""
        end = self.seen.rfind(self._end) + len(self._end)
        self.seen = self.seen[:end] if self._is_stream and self._end in self.seen else b""


class Receiver:
    """Takes webhooks; how often each came, by its id."""

    def __init__(self) -> None:
        self.taken = taken = Counter[str]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                taken[self.headers["webhook-id"]] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def learned(server: KilledServer, missing: set[tuple[str, int]]) -> Undisturbed:
    """What these requests say now that nothing disturbs them."""
    found, todo = Undisturbed(), sorted(missing)
    while todo:
        part, todo = todo[:AT_A_TIME], todo[AT_A_TIME:]
        calm = {one: Client(server, f"calm-{one[0]}-{one[1]}", *one) for one in part}
        for key, client in calm.items():
            client.join()
            found[key] = said_by(client)
    return found


def all_kinds(seed: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Requests of clients: those of every kind, and an agent that calls a tool."""
    agent = {
        "model": "mini",
        "stream": True,
        "seed": seed,
        "input": "Keep some notes.",
        "tools": [{"type": "mcp", "server_label": "notes", "require_approval": "never"}],
        "max_output_tokens": 60,
        "budget": {"steps": 3},
    }
    return {**kinds(seed), "agent": ("/v1/responses", agent)}


def batch_body(number: int) -> dict[str, Any]:
    """The request on a line of the batch."""
    return {"model": "mini", "messages": STORY, "seed": number, "max_tokens": 40, "ignore_eos": True}


def said_by(one: Client) -> list[Any]:
    """What a reply says, without ids and times."""
    if one.kind == "agent":
        done = [line for line in one.seen.split(b"\n") if b'"type":"response.output_item.done"' in line]
        items = [json.loads(line.removeprefix(b"data: "))["item"] for line in done]
        return [[{k: v for k, v in item.items() if k != "id"} for item in items]]
    return without_ids(one.seen)


def without_clock(stream: bytes) -> bytes:
    """Ollama's lines say when each was written, and how long it took."""
    return re.sub(rb'"(created_at|[a-z_]+_duration)":[^,}]+', b"", stream)
