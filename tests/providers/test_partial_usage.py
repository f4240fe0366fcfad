"""What is booked of answers that were not read to their end, and of usage that cannot be the whole."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_provider import HELLO, Exchange, Gateway, Reply, delta, events, say, usage

from headrace.economy.check import check
from headrace.economy.entries import Entry
from headrace.economy.ledger import Ledger
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.economy.rerate import rerate
from headrace.storage.database import Database

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PRICES = {"work/*": {"input": 2, "output": 10}}  # 2,000 and 10,000 nano-dollars a token
BUDGETS = {"all": {"usd": 100}}
ONE = {"max_attempts": 1}


def anthropic_events() -> tuple[bytes, bytes]:
    """What comes before the end of a long answer, whose usage is a first count, and its end."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    text = {"type": "text_delta", "text": "word " * 200}
    more = {"type": "content_block_delta", "index": 0, "delta": text}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 200}}
    return events(start, block, more, done=False), events(end, {"type": "message_stop"}, done=False)


def google_events() -> tuple[bytes, bytes]:
    """As `anthropic_events`."""
    chunk: dict[str, Any] = {"candidates": [{"index": 0, "content": {"parts": [{"text": "word " * 200}]}}]}
    first = chunk | {"usageMetadata": {"promptTokenCount": 5, "totalTokenCount": 5}}
    counts = {"promptTokenCount": 5, "candidatesTokenCount": 200, "totalTokenCount": 205}
    last = {"candidates": [{"index": 0, "finishReason": "STOP"}], "usageMetadata": counts}
    return events(first, done=False), events(last, done=False)


def chat_events() -> tuple[bytes, bytes]:
    """As `anthropic_events`, of a server that reports usage in each chunk."""
    counts = {"usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    first = delta(content="word " * 200) | counts
    return events(first, done=False), events(delta(finish="stop"), usage(5, 200))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORK_KEY", "sk-0123456789")


STREAMS = {"anthropic": anthropic_events, "google": google_events, "openai_chat": chat_events}


def entry_of(store: Path) -> Entry:
    """The only entry, when it is there."""
    until_s = time.monotonic() + 60
    while not (found := list(Ledger(Database(store)).entries())) and time.monotonic() < until_s:
        time.sleep(0.02)
    [(_, entry)] = found
    return entry


def checked(store: Path) -> None:
    """The ledger adds up, nothing is held, and no other price makes the entry another one."""
    spend = LedgerRecorder(Database(store), PriceBook(PRICES))
    report = check(spend.ledger, spend.budgets, spend.prices)
    assert not report.problems, report
    assert not spend.budgets.holds()
    assert not rerate(spend.ledger, spend.prices, "2000-01-01", write=False)
    spend.close()


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the provider breaks off"])
def test_the_usage_of_an_answer_that_broke_off_is_no_bill(
    gateway: Callable[..., Gateway], tmp_path: Path, dialect: str, leaves: bool
) -> None:
    """The first count of Anthropic is one token: who left before the end paid that, and passed any budget."""
    first, _ = STREAMS[dialect]()

    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(first)
        while leaves:
            await asyncio.sleep(0.02)
            await exchange.send(b": still here\n\n")

    store = tmp_path / "store.sqlite3"
    server, _ = gateway(
        reply,
        provider={"dialect": dialect, "api_key_env": "WORK_KEY"},
        model=ONE,
        prices=PRICES,
        budgets=BUDGETS,
        store=str(store),
    )
    body = {"model": "far", "messages": ASK, "stream": True, "max_tokens": 1_000}
    with server.http().stream("POST", "/v1/chat/completions", json=body) as stream:
        for line in stream.iter_lines():
            if leaves and "word" in line:
                break
    entry = entry_of(store)
    assert (entry.status, entry.price_source) == ("estimated", "the worst case")
    assert entry.nano_usd >= 1_000 * 10_000  # the output that it was allowed
    assert "all of the answer was not reported" in entry.reason
    assert json.loads(entry.raw_usage)["so_far"]
    checked(store)


@pytest.mark.parametrize("dialect", STREAMS)
def test_the_usage_of_a_whole_answer_is(
    gateway: Callable[..., Gateway], tmp_path: Path, dialect: str
) -> None:
    first, last = STREAMS[dialect]()

    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(first + last)

    store = tmp_path / "store.sqlite3"
    server, _ = gateway(
        reply,
        provider={"dialect": dialect, "api_key_env": "WORK_KEY"},
        model=ONE,
        prices=PRICES,
        budgets=BUDGETS,
        store=str(store),
    )
    body = {"model": "far", "messages": ASK, "max_tokens": 1_000}
    said = server.http().post("/v1/chat/completions", json=body)
    assert said.json()["usage"]["completion_tokens"] == 200, said.text
    assert (entry_of(store).status, entry_of(store).nano_usd) == ("measured", 5 * 2_000 + 200 * 10_000)
    checked(store)


@pytest.mark.parametrize(
    "counts",
    [
        '{"prompt_tokens": 0, "completion_tokens": 0}',
        '{"prompt_tokens": 5, "completion_tokens": 0}',
        '{"prompt_tokens": 5, "completion_tokens": 3, "cost": 1e999999}',
        '{"prompt_tokens": 5, "completion_tokens": 3, "is_byok": true, "cost": 0, '
        '"cost_details": {"upstream_inference_cost": 1e999999}}',
        '{"prompt_tokens": 9000000000000000, "completion_tokens": 1}',
    ],
)
def test_usage_that_cannot_be_right_is_booked(
    gateway: Callable[..., Gateway], tmp_path: Path, counts: str
) -> None:
    """Two of these were an error of the store, after which the attempt was in no entry and its money held."""
    last = f'data: {{"choices": [], "usage": {counts}}}\n\ndata: [DONE]\n\n'.encode()

    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(events(*HELLO, done=False) + last)

    store = tmp_path / "store.sqlite3"
    server, _ = gateway(reply, model=ONE, prices=PRICES, budgets=BUDGETS, store=str(store))
    body = {"model": "far", "messages": ASK, "max_tokens": 1_000}
    said = server.http().post("/v1/chat/completions", json=body)
    assert said.status_code == 200 and said.json()["usage"]["completion_tokens"] > 0, said.text
    entry = entry_of(store)
    if "cost" in counts:  # an amount that is none: the tokens are billed
        assert (entry.status, entry.nano_usd) == ("measured", 5 * 2_000 + 3 * 10_000)
    else:
        assert (entry.status, entry.price_source) == ("estimated", "the worst case")
        assert entry.nano_usd >= 1_000 * 10_000
    checked(store)


async def stalled(exchange: Exchange) -> None:
    """A whole answer, whose stream then stops."""
    await exchange.begin()
    await exchange.send(events(*HELLO, usage(), done=False))
    await asyncio.sleep(30)


async def cut_off(exchange: Exchange) -> None:
    """A whole answer, and a piece that is not."""
    await exchange.begin(transfer_encoding="chunked")
    data = events(*HELLO, usage(), done=False)
    await exchange.send(b"%x\r\n%s\r\n" % (len(data), data) + b"ff\r\nno")
    exchange.writer.close()


@pytest.mark.parametrize("reply", [stalled, cut_off])
def test_what_follows_a_whole_answer_is_not_needed(
    gateway: Callable[..., Gateway], tmp_path: Path, reply: Reply
) -> None:
    store = tmp_path / "store.sqlite3"
    server, _ = gateway(*[reply], provider={"idle_timeout": 0.3}, model=ONE, prices=PRICES, store=str(store))
    body = {"model": "far", "messages": ASK, "stream": True}
    said = server.http().post("/v1/chat/completions", json=body).text
    assert "error" not in said and said.count("[DONE]") == 1 and '"finish_reason":"stop"' in said
    assert entry_of(store).status == "measured"


def test_calls_with_one_id_get_another(gateway: Callable[..., Gateway]) -> None:
    def call(index: int, text: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": text}
        return delta(tool_calls=[{"index": index, "id": "same", "function": function}])

    server, _ = gateway(say(call(0, '{"x":'), call(0, "1}"), call(1, '{"x":2}'), delta(finish="tool_calls")))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    said = (
        server.http()
        .post("/v1/chat/completions", json={"model": "far", "messages": ASK, "tools": [tool]})
        .json()
    )
    first, second = said["choices"][0]["message"]["tool_calls"]
    assert first["id"] == "same" != second["id"]
    assert [one["function"]["arguments"] for one in (first, second)] == ['{"x":1}', '{"x":2}']
    assert any("two calls one id" in one["message"] for one in said["warnings"])
