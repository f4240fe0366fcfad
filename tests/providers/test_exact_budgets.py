"""Budgets are not exceeded by a nano-dollar, whatever is asked of whatever provider by however many."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("anthropic")

from fake_provider import delta, fail, say, usage
from greedy_provider import PRICES, PROVIDERS, GreedyProvider

from headrace.chat.messages import Image, Message
from headrace.chat.tools import Tool, ToolUse
from headrace.economy.budget_settings import read_budgets
from headrace.economy.check import check
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.errors import HeadraceError
from headrace.gateway import attempts as attempts_module
from headrace.gateway.breaker import Breaker
from headrace.gateway.routes import read_routes
from headrace.gateway.routing_handler import RoutingHandler
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest, ReasoningSettings
from headrace.providers.target import read_providers
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits

BUDGETS: dict[str, Any] = {
    "all": {"usd": 5},
    "keys": {"each": "key", "usd_per_month": 1.7},
    "one": {"usd_per_request": 0.2},
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PNG = "data:image/png;base64,aGk="
WORDS = ("word", "0123456789", "Ünïcödé", "日本語", "🎉", "\x07", '"\\', "ﷺ", "ffi")
ROUTES = {name: {"provider": name, "model": "m"} for name in PROVIDERS} | {
    "any": {"targets": ["chat", "gemini", "claude"], "hedge": True},
    "small": {"provider": "compatible", "model": "m", "max_output_tokens": 300},
}


def asked(dice: random.Random, number: int) -> ChatRequest:
    model = dice.choice(list(ROUTES))
    text = " ".join(dice.choice(WORDS) for _ in range(dice.choice((1, 5, 100, 2_000))))
    images = (Image(PNG),) if dice.random() < 0.05 else ()
    tool = Tool("weather", "Tells it. " * dice.randint(1, 30), SCHEMA)
    sampling: dict[str, Any] = {}
    if dice.random() < 0.7:
        sampling["max_tokens"] = dice.choice((1, 16, 100, 1_000, 20_000))
    if dice.random() < 0.2 and model in ("chat", "compatible", "gemini", "grok", "small"):
        sampling["n"] = dice.randint(2, 4)
    thinks = model == "claude" and dice.random() < 0.5
    return ChatRequest(
        id=str(number),
        model=model,
        messages=(Message("system", "Be kind."), Message("user", text, images=images)),
        sampling=sampling,
        tools=ToolUse((tool,), (tool,)) if dice.random() < 0.3 else None,
        reasoning=ReasoningSettings(max_tokens=2_000) if thinks else ReasoningSettings(),
    )


async def spend_all(path: Path, seed: int, requests: int) -> dict[str, Any]:
    """All requests at the same time; what was refused, and what the provider has billed."""
    attempts_module.BACKOFF_S, attempts_module.MAX_WAIT_S = 0.001, 0.1
    provider, dice = GreedyProvider(seed), random.Random(seed)
    listening = await provider.start()
    spend = LedgerRecorder(Database(path), PriceBook(PRICES), read_budgets(BUDGETS))
    settings = {"allow_private": True, "max_connections": 2_000}
    providers = read_providers(
        {
            name: {**table, **settings, "base_url": f"http://127.0.0.1:{provider.port}/{name}"}
            for name, table in PROVIDERS.items()
        }
    )
    routing = RoutingHandler(None, lambda one: "key", spend)  # type: ignore[arg-type]
    routing.update(read_routes(ROUTES, providers), providers)
    outcomes: dict[str, int] = {}

    async def one(number: int) -> None:
        request, outcome = asked(dice, number), ""
        for trial in range(3):  # what is refused because others have set money aside fits later
            outcome = await tried(request, f"{seed}-{number}-{trial}", number)
            if outcome != "insufficient_quota":
                break
            await asyncio.sleep(dice.random())
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    async def tried(request: ChatRequest, request_id: str, number: int) -> str:
        call = CallContext(request_id=request_id, account=Account(f"key{number % 4}", KeyLimits()))
        for state in routing.states:
            state.breaker = Breaker()
        batches = routing.handle(request, call)
        outcome = "ok"
        try:
            async for _ in batches:
                if dice.random() < 0.01:
                    outcome = "left"
                    break
        except HeadraceError as error:
            outcome = error.code or error.kind
        finally:
            await batches.aclose()
        return outcome

    async def watch() -> None:
        while True:
            assert sum(spend.budgets.used("all", "total")) <= 5 * 10**9
            await asyncio.sleep(0.01)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(one(number) for number in range(requests)))
    assert not watching.done(), watching.exception()
    watching.cancel()
    await routing.close()
    listening.close()
    spend.close()
    return {"outcomes": outcomes, "counts": provider.counts}


def least_cost(counts: list[tuple[str, int, int]]) -> int:
    """What the provider has billed at the cheapest rates that it may have meant, in nano-dollars."""
    total = 0
    for name, given, output in counts:
        price = PRICES[f"{name}/*"]
        total += int(
            1000 * (given * min(price["input"], price.get("cache_read", 99)) + output * price["output"])
        )
    return total


def examine(path: Path, found: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    spend = LedgerRecorder(Database(path), PriceBook(PRICES), read_budgets(BUDGETS))
    totals = spend.ledger.database.query("SELECT budget, period, nano_usd FROM budget_totals")
    limits = {"all": 5 * 10**9, "keys": 17 * 10**8, "one": 2 * 10**8}
    for budget, period, nano_usd in totals:
        limit = limits[str(budget).split("/")[0]]
        assert isinstance(nano_usd, int) and nano_usd <= limit, (budget, period, nano_usd)
    assert spend.budgets.holds() == []
    spent = spend.budgets.used("all", "total")[0]
    entries = [entry for _, entry in spend.ledger.entries()]
    assert spent == sum(entry.nano_usd for entry in entries)
    assert least_cost([count for one in found for count in one["counts"]]) <= spent
    assert spent > 4 * 10**9, "the budget is used"
    assert {entry.status for entry in entries} <= {"measured", "estimated", "not_billed"}
    report = check(spend.ledger, spend.budgets, spend.prices)
    assert report.problems == ()
    assert "set aside" not in caplog.text


def test_a_thousand_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = asyncio.run(spend_all(tmp_path / "store", 7, 1_000))
    print(found["outcomes"])
    assert found["outcomes"]["ok"] > 50 and found["outcomes"]["insufficient_quota"] > 100
    examine(tmp_path / "store", [found], caplog)


@pytest.mark.nightly
def test_a_thousand_in_three_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = (
        "import asyncio, json, sys; from pathlib import Path; from test_exact_budgets import spend_all; "
        "print(json.dumps(asyncio.run(spend_all(Path(sys.argv[1]), int(sys.argv[2]), 334))))"
    )
    folders = f"import sys; sys.path[:0] = {[entry for entry in sys.path if 'tests' in entry]!r}; "
    started = [
        subprocess.Popen(
            [sys.executable, "-c", folders + program, str(tmp_path / "store"), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2, 3)
    ]
    found = [json.loads(process.communicate(timeout=300)[0]) for process in started]
    examine(tmp_path / "store", found, caplog)


PRICE = {"work/far-1": {"input": 1, "output": 10}}
ASK: list[Any] = [{"role": "user", "content": "hi"}]


def sent_limit(gateway: Any, store: Path, usd: float, body: dict[str, Any], **given: Any) -> tuple[Any, Any]:
    """The limit that the provider gets of a request, and the reply."""
    budgets = {"all": {"usd": usd, **given.pop("budget", {})}}
    server, provider = gateway(
        say(delta(content="Hi"), delta(finish="stop"), usage(5, 1)),
        **{"prices": PRICE, "budgets": budgets, "store": str(store), **given},
    )
    reply = server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK, **body})
    return provider.exchanges[-1].body.get("max_tokens"), reply


@pytest.mark.parametrize(
    ("usd", "body", "model", "limit", "warning"),
    [
        (1, {"max_tokens": 500}, {}, 500, None),
        (1, {}, {}, 4096, "is 4,096: a budget bounds the output, and no limit was sent"),
        (1, {}, {"max_output_tokens": 9_000}, 9_000, "is 9,000"),
        (1, {}, {"max_output_tokens": 90_000}, 32_768, "is 32,768"),
        (1, {"max_tokens": 500}, {"max_output_tokens": 300}, 300, "instead of 500: the model writes no more"),
        (0.01, {"max_tokens": 5_000}, {}, None, "instead of 5,000: the budget has no more"),
    ],
)
def test_the_target_gets_the_limit_that_the_budget_affords(
    gateway: Any, tmp_path: Path, usd: float, body: Any, model: Any, limit: int | None, warning: str | None
) -> None:
    found, reply = sent_limit(gateway, tmp_path / "store", usd, body, model=model)
    assert reply.status_code == 200, reply.text
    warnings = [one["message"] for one in reply.json().get("warnings", []) if one["param"] == "max_tokens"]
    assert not warnings if warning is None else warning in warnings[0]
    if limit is not None:
        assert found == limit
    else:  # all that is left: 10,000,000 nano-dollars, of which the input takes 1,000 a byte
        assert 600 < found < 1_000


def test_a_limit_that_the_caller_did_not_send_is_explained_where_it_is_too_long(
    gateway: Any, tmp_path: Path
) -> None:
    long = fail(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    server, _ = gateway(long, prices=PRICE, budgets={"all": {"usd": 1}}, store=str(tmp_path / "store"))
    body: Any = {"model": "far", "messages": ASK}
    said = server.http().post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert "4,096 was added" in said and "max_output_tokens of [models.far]" in said
    own = (
        server.http().post("/v1/chat/completions", json=body | {"max_tokens": 90}).json()["error"]["message"]
    )
    assert "too long" in own and "budget" not in own


def test_without_a_budget_nothing_is_limited(gateway: Any, tmp_path: Path) -> None:
    elsewhere = {"keys": ["someone-else"]}
    assert sent_limit(gateway, tmp_path / "a", 1, {}, budget=elsewhere)[0] is None
    assert sent_limit(gateway, tmp_path / "b", 1, {}, budget={"reserve": "estimate"})[0] is None


def test_a_budget_that_affords_no_answer_refuses(gateway: Any, tmp_path: Path) -> None:
    server, provider = gateway(prices=PRICE, budgets={"all": {"usd": 0.0012}}, store=str(tmp_path / "store"))
    reply = server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK})
    assert reply.status_code == 402 and not provider.exchanges


def test_a_provider_that_bills_more_than_it_may_closes_the_budget(gateway: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    reply = say(delta(content="Hi"), delta(finish="stop"), usage(9_000, 2_000))
    server, provider = gateway(reply, prices=PRICE, budgets={"all": {"usd": 0.02}}, store=str(store))
    body = {"model": "far", "messages": ASK, "max_tokens": 100}
    assert server.http().post("/v1/chat/completions", json=body).status_code == 200
    assert server.http().post("/v1/chat/completions", json=body).status_code == 402
    assert len(provider.exchanges) == 1
    [(_, entry)] = LedgerRecorder(Database(store), PriceBook(PRICE)).ledger.entries()
    assert entry.status == "disputed" and entry.nano_usd == 29_000_000
    assert "9,000 tokens of input, by what was sent and received at most" in entry.reason


def test_an_answer_that_a_budget_cut_is_not_kept(gateway: Any, tmp_path: Path) -> None:
    model = {"cache": True}
    for usd, expected in ((0.01, "none"), (1, "exact")):
        store = tmp_path / f"{usd}"
        budgets = {"all": {"usd": usd}}
        server, _ = gateway(
            say(delta(content="Hi"), delta(finish="stop"), usage(5, 1)),
            prices=PRICE,
            budgets=budgets,
            store=str(store),
            model=model,
            cache={},
        )
        body = {"model": "far", "messages": ASK, "max_tokens": 5_000, "temperature": 0}
        for header in ("none", expected):
            reply = server.http().post("/v1/chat/completions", json=body)
            assert reply.headers["x-headrace-cache"] == header, (usd, reply.text)
            time.sleep(0.1)  # it is kept after the reply
