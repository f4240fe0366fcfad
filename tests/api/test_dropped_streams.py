"""No stream that was opened is dropped without being closed, whenever its request is cancelled."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from random import Random
from typing import Any

import pytest
from fake import FakeEngine, FakeModel
from in_process import running_server

from headrace.api.http.call_context import HttpCall
from headrace.api.http.generation import unless_gone
from headrace.api.service import Service
from headrace.inference.accounts import Account


class Opened:
    """What has to be closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class Waiting:
    """A client that stays."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("turns", range(6))
def test_cancelled_while_the_stream_opens(turns: int) -> None:
    opened: list[Opened] = []
    http: Any = Waiting()

    async def opening() -> Opened:
        await asyncio.sleep(0)
        found = Opened()
        opened.append(found)
        return found

    async def respond() -> None:
        found = await unless_gone(http, opening(), drop=lambda one: one.aclose())
        assert found is not None
        await found.aclose()

    async def run() -> None:
        task = asyncio.ensure_future(respond())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await asyncio.sleep(0)
        assert [one.closed for one in opened] in ([], [1])

    asyncio.run(run())


ASK = [{"role": "user", "content": "hello"}]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 40, "stream": True}),
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 40, "n": 3}),
    ("/v1/completions", {"prompt": ["a", "b" * 5000], "max_tokens": 40}),  # the second is too long
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 40, "stream": True}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 40, "stream": True}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 40}),
    ("/v1/messages", {"model": "fake/model", "messages": ASK, "max_tokens": 40, "stream": True}),
    ("/api/chat", {"model": "fake/model", "messages": ASK, "options": {"num_predict": 40}}),
    ("/completion", {"prompt": "a", "n_predict": 40, "stream": True}),
    ("/v1/messages/count_tokens", {"model": "fake/model", "messages": ASK}),
    ("/tokenize", {"content": "a" * 3000}),
]


def test_clients_that_leave_at_any_moment_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random, calls = Random(3), list[HttpCall]()
    tokens: dict[int, int] = {}
    ended, reserve, settle = Service.ended, Account.reserve, Account.settle

    def noted(self: Service, call: HttpCall) -> None:
        calls.append(call)
        ended(self, call)

    def reserved(self: Account, count: int) -> None:
        reserve(self, count)
        tokens[id(self)] = tokens.get(id(self), 0) + count

    def settled(self: Account, returned: int) -> None:
        settle(self, returned)
        tokens[id(self)] = tokens.get(id(self), 0) - returned

    monkeypatch.setattr(Service, "ended", noted)
    monkeypatch.setattr(Account, "reserve", reserved)
    monkeypatch.setattr(Account, "settle", settled)
    model = FakeModel(engine=FakeEngine(pause_s=0.0005))
    limits = {"key_tpm": 10**6, "key_max_concurrency": 64, "log_requests": False}
    with running_server(model, **limits) as server:
        for _ in range(150):
            path, body = random.choice(REQUESTS)
            _leave(server.port, path, json.dumps(body).encode(), random.uniform(0.0, 0.04))
        service: Service = server.server.config.app.state.service

        def left() -> list[object]:
            found = [service.gate.open_calls, len(service.local.runs), service.local.queued_tokens]
            accounts = {id(call.account): call.account for call in calls}
            used = sum(one.prompt_tokens + one.completion_tokens for call in calls for one in call.usages)
            found += [one._open for one in accounts.values()]
            users = [dict(entry.users) for entry in service.models.entries if entry.users]
            return [one for one in (*found, *users, sum(tokens.values()) - used) if one]

        deadline_s = time.monotonic() + 20
        while left() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not left()
        assert sum(not call.status or call.status == 499 for call in calls) > 10  # of clients that left
        assert server.http().post("/v1/chat/completions", json={"messages": ASK}).status_code == 200


def _leave(port: int, path: str, body: bytes, after_s: float) -> None:
    """Send a request and reset its connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(after_s)
