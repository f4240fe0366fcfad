"""A server with a journal that can be killed and started again, and clients of its streams."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START_S = 60.0


class KilledServer:
    """`headrace serve` over one journal and one store, on ports that change from start to start."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        journal: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.journal = folder, folder / "journal"
        self._environment = environment or {}
        self._flags = (
            "--journal",
            journal or str(self.journal),
            "--store",
            str(folder / "store.sqlite3"),
            *flags,
        )
        self.process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> None:
        """Start it and wait until requests are taken."""
        command = [sys.executable, "-m", "headrace", "serve", "mini", "--port", "0", *self._flags]
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment |= {"HEADRACE_MAX_NUM_SEQS": "32", **self._environment}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found, "the server did not start"
        self.port = int(found[1])

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.communicate(timeout=60)

    def kill_workers(self) -> int:
        """Kill the processes of its models; how many there were."""
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        children = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        children = [pid for pid, line in lines.items() if b"headrace.workers" in line]  # no tool's program
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        return len(children)

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """One request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        try:
            connection.request(
                method,
                path,
                sent,
                {"content-type": "application/json", "connection": "close", **(headers or {})},
            )
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def json(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """The JSON of a reply."""
        reply = self.ask(method, path, body, headers)
        return json.loads(reply.read())


class Reader:
    """Reads the reply to one request in a thread, as far as it comes; then the rest by its id."""

    def __init__(
        self,
        server: KilledServer,
        request_id: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.request_id, self._server, self.seen = request_id, server, b""
        self._path, self._body = path, body
        self._headers = {"x-request-id": request_id, **(headers or {})}
        self.is_whole = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            reply = self._server.ask("POST", self._path, self._body, self._headers)
            with reply:
                assert reply.status == 200, reply.read()
                while part := reply.read1(65536):
                    self.seen += part
            self.is_whole = True
        except (OSError, http.client.HTTPException):
            pass

    def cut(self) -> None:
        """The server was killed: keep whole events alone."""
        self._thread.join(30)
        end = b"\n" if self._path.startswith("/api/") else b"\n\n"
        self.seen = self.seen[: self.seen.rfind(end) + len(end)] if end in self.seen else b""
        self.events = self.seen.count(end)

    def go_on(self) -> None:
        """Read what follows the last event, as far as it comes."""
        self.events: int
        headers = {"last-event-id": str(self.events - 1)} if self.events else {}
        self._thread = threading.Thread(target=self._follow, args=(headers,), daemon=True)
        self._thread.start()

    def _follow(self, headers: dict[str, str]) -> None:
        try:
            reply = self._server.ask("GET", f"/v1/requests/{self.request_id}/stream", None, headers)
            with reply:
                assert reply.status == 200, (self.request_id, reply.read())
                while part := reply.read1(65536):
                    self.seen += part
            self.is_whole = True
        except (OSError, http.client.HTTPException):
            pass

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join(60)
        assert self.is_whole, self.request_id


def without_ids(stream: bytes) -> list[Any]:
    """What a stream says, without what differs between two equal requests: ids and times. Deltas are put
    together, since two runs may cut them otherwise."""
    texts: dict[object, str] = {}
    others: list[str] = []
    for line in stream.decode().splitlines():
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        event = json.loads(data)
        for key, text in _texts(event):
            texts[key] = texts.get(key, "") + text
        for choice in event.get("choices", []):
            if choice.get("finish_reason"):
                others.append(f"{choice['index']}: {choice['finish_reason']}")
    return [texts, sorted(others)]


def _texts(event: Any) -> list[tuple[object, str]]:
    found: list[tuple[object, str]] = []
    for choice in event.get("choices", []):
        delta = choice.get("delta", choice)
        for name in ("content", "text", "reasoning_content"):
            if delta.get(name):
                found.append(((choice["index"], name), delta[name]))
        for call in delta.get("tool_calls") or []:
            function = call["function"]
            found.append(
                (
                    (choice["index"], call["index"]),
                    (function.get("name") or "") + (function.get("arguments") or ""),
                )
            )
    if event.get("type") == "content_block_delta":
        found.append((event["index"], event["delta"].get("text") or event["delta"].get("partial_json", "")))
    if event.get("type") == "response.output_text.delta":
        found.append(("output", event["delta"]))
    if isinstance(message := event.get("message"), dict) and isinstance(message.get("content"), str):
        found.append(("message", message["content"]))
    if isinstance(event.get("response"), str):
        found.append(("response", event["response"]))
    return found
