"""Thousands of random faults of a provider: clients see right streams only, attempts are booked once."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake import FakeModel
from fake_provider import Exchange, FakeProvider
from faults import TOOL, Script, play
from stream_rules import anthropic, ollama, openai_chat, responses

from headrace.api.app import create_app
from headrace.config.sources import load_settings
from headrace.economy.budget_settings import read_budgets
from headrace.economy.check import check as check_ledger
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.gateway import attempts as attempts_module
from headrace.gateway.breaker import Breaker
from headrace.inference.attempts import Attempt, Hold
from headrace.storage.database import Database

REQUESTS = int(os.environ.get("TEST_PROVIDER_FAULTS", "600"))
AT_A_TIME = 32
ASK: list[Any] = [{"role": "user", "content": "hi"}]
SURFACES: dict[str, Any] = {
    "/v1/chat/completions": (openai_chat, {"messages": ASK}),
    "/v1/messages": (anthropic, {"messages": ASK, "max_tokens": 500}),
    "/v1/responses": (responses, {"input": "hi", "store": False}),
    "/api/chat": (ollama, {"messages": ASK}),
}


class Recorder(LedgerRecorder):
    """Books attempts in a ledger; holds that are not settled are `open`."""

    def __init__(self, path: Path) -> None:
        prices = PriceBook({"work/*": {"input": 1, "output": 1000}})
        super().__init__(Database(path), prices, read_budgets({"all": {"usd": 1_000_000}}))
        self.open: set[int] = set()
        self.attempts: list[Attempt] = []

    async def reserve(self, **named: Any) -> Hold:
        hold = await super().reserve(**named)
        self.open.add(hold.id)
        return hold

    async def settle(self, hold: Hold, attempt: Attempt) -> int | None:
        self.open.remove(hold.id)
        self.attempts.append(attempt)
        return await super().settle(hold, attempt)

    def check(self, scripts: Mapping[int, Sequence[Script]]) -> None:
        """The ledger is what the provider counted: each whole answer once, at the price of its usage."""
        entries = [entry for _, entry in self.ledger.entries()]
        measured = [one for one in entries if one.status == "measured" and one.outcome == "ok"]
        booked = {(number_of(one.request_id), one.attempt): one.nano_usd for one in measured}
        counted = {
            (number, at): 1_000 * script.billed[0] + 1_000_000 * script.billed[1]
            for number, played in scripts.items()
            for at, script in enumerate(played, 1)
            if script.billed is not None
        }
        differs = {key for key, _ in booked.items() ^ counted.items()}
        assert not differs, [one for one in entries if (number_of(one.request_id), one.attempt) in differs]
        assert len(booked) == len(measured)
        report = check_ledger(self.ledger, self.budgets, self.prices)
        played = sum(map(len, scripts.values()))
        assert report.problems == () and report.entries == len(self.attempts) == played
        spent, held = self.budgets.used("all", "total")
        assert held == 0 and spent == sum(entry.nano_usd for entry in entries)


def number_of(request_id: str) -> int:
    return int(request_id.split(".")[0])


class FaultyProvider(FakeProvider):
    """Plays a script for each attempt, by the seed of its request, which is in the body."""

    def __init__(self) -> None:
        super().__init__([self._reply])
        self.scripts: dict[int, list[Script]] = {}

    async def _reply(self, exchange: Exchange) -> None:
        number = int(exchange.body["messages"][0]["content"])
        before = self.scripts.setdefault(number, [])
        script = Script(exchange, len(before), random.Random(number * 10 + len(before)))
        before.append(script)
        await play(script)


def body_of(number: int, path: str) -> dict[str, Any]:
    body = dict(SURFACES[path][1]) | {"model": "far", "stream": True}
    key = "input" if path == "/v1/responses" else "messages"
    body[key] = [{"role": "user", "content": str(number)}]
    if number % 3 == 0:
        function = TOOL["function"]
        body["tools"] = {
            "/v1/messages": [{"name": "note", "input_schema": function["parameters"]}],
            "/v1/responses": [{"type": "function", **function}],
        }.get(path, [TOOL])
    return body


def test_random_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attempts_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(attempts_module, "MAX_WAIT_S", 0.1)
    outcomes = asyncio.run(run(tmp_path / "store"))
    print(dict(outcomes))
    assert outcomes["ok"] > REQUESTS * 0.3 and outcomes["broken"] > REQUESTS * 0.02
    assert sum(outcomes.values()) == REQUESTS


async def run(path: Path) -> Counter[str]:
    provider, recorder = FaultyProvider(), Recorder(path)
    listening = await provider.start()
    table = {
        "base_url": provider.url,
        "dialect": "openai_chat",
        "idle_timeout": 1.0,
        "first_byte_timeout": 2.0,
    }
    settings = load_settings({"providers": {"work": table}}, environ={}, folders=[])
    app = create_app(FakeModel(), settings, None)  # type: ignore[arg-type]
    service = app.state.service
    service.remote.spend = recorder
    entries = {"a": {"provider": "work"}, "b": {"provider": "work"}, "far": {"targets": ["a", "b"]}}
    service.serve_remote(settings, entries)
    routing: Any = service.remote.handler
    outcomes: Counter[str] = Counter()
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        path = list(SURFACES)[number % len(SURFACES)]
        async with gate:
            for state in routing.states:
                state.breaker = Breaker()
            named = {"x-request-id": str(number)}
            reply = await client.post(path, json=body_of(number, path), headers=named)
        outcomes[check(number, path, reply, provider.scripts.get(number, []))] += 1

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
        await asyncio.gather(*(one(number) for number in range(REQUESTS)))
    await service.remote.close()
    listening.close()
    assert not recorder.open, "holds that were never settled"
    recorder.close()
    recorder.check(provider.scripts)
    assert service.remote.running == 0
    return outcomes


def check(number: int, path: str, reply: httpx.Response, scripts: list[Script]) -> str:
    """What became of a request; raises where the client saw what it must not see."""
    assert len(scripts) <= 3, (number, len(scripts))
    if not scripts:  # requests beside it have opened the breakers of both targets
        busy = 529 if path == "/v1/messages" else 503  # as each surface has it
        assert reply.status_code == busy and "is left alone for" in reply.text, (number, reply.text)
        return "refused"
    if reply.status_code != 200:
        assert (reply.status_code < 600 and "'a'" in reply.text) or "'b'" in reply.text, (number, reply.text)
        assert reply.headers.get("x-should-retry") == "false"
        assert not any(script.was_whole for script in scripts)
        return "refused"
    try:
        text, error = SURFACES[path][0](reply.content)
    except AssertionError as broken:
        raise AssertionError(f"request {number} at {path}: {reply.text[-3000:]}") from broken
    words = re.findall(r"<(\d+)\.(\d+)>", text)
    assert {attempt for attempt, _ in words} <= {str(len(scripts) - 1)}, f"request {number}: {text}"
    told = [at for _, at in words]
    if error is not None:
        assert "'a'" in reply.text or "'b'" in reply.text
        said = "".join(f"<{len(scripts) - 1}.{at}>" for at in told)
        assert "".join(scripts[-1].words).startswith(said), (number, text)
        return "broken"
    assert text == "".join(scripts[-1].words), (number, text)
    return "ok"
