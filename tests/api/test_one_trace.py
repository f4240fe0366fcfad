"""One request over a model, SQL with a model in it, search and a tool of another process: one trace, whose
parts are its time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from in_process import Running, server_of

pytest.importorskip("mcp", reason="needs headrace[tools]")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs headrace[otel]")
pytest.importorskip("duckdb_extension_sqlite_scanner", reason="needs headrace[data]")

from fake_provider import FakeProvider, fail, running_provider
from msgspec import Struct
from otlp_receiver import Receiver, attributes, http_receiver, wait_until
from search_fixture import fill

from encoder_models import load_encoders
from headrace.chat.tool_formats.events import Arguments, CallEnd, CallStart, Text
from headrace.config.mcp import read_mcp
from headrace.economy.entries import Entry
from headrace.economy.ledger import Ledger
from headrace.economy.machine import IDLE
from headrace.inference.call_context import CallContext
from headrace.inference.events import OutputDelta, OutputFinished
from headrace.inference.handler import Batch, Handler
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.search.index import IndexMeta
from headrace.search.indexes import Indexes
from headrace.tools.mcp.gateway import McpGateway

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RAW = Path(__file__).parents[1] / "tools" / "raw_server.py"
SQL = "SELECT id, ai('Answer %s:', body, max_tokens := 4) AS a FROM mails ORDER BY id"
TOOLS = [
    {"type": "sql"},
    {"type": "search"},
    {"type": "mcp", "server_label": "shop", "require_approval": "never"},
]
BODY = {"model": "best", "tools": TOOLS, "store": False}


class Steered:
    """The model computes what it computes; what it says is a script's."""

    def __init__(self, inner: Handler) -> None:
        self._inner = inner
        self.allowed_usd: list[float | None] = []

    async def handle(self, request: Any, call: CallContext) -> AsyncGenerator[Batch]:
        self.allowed_usd.append(request.route and request.route.max_usd)
        is_first = not any(one.role == "tool" for one in request.messages)
        asked = request.__class__(id=request.id, model=request.model, messages=request.messages[:1])
        async for batch in self._inner.handle(asked, call):
            kept = [one for one in batch if not isinstance(one, OutputDelta | OutputFinished)]
            if any(isinstance(one, OutputFinished) for one in batch):
                parts: list[Any] = [Text("Three mails.")]
                if is_first:
                    made = enumerate(_calls(str(request.messages[0].content)))
                    parts = [
                        part
                        for n, (name, text) in made
                        for part in (CallStart(n, f"c{n}", name), Arguments(n, text), CallEnd(n))
                    ]
                kept = [OutputDelta(0, tuple(parts)), OutputFinished(0, (), "stop", "stop"), *kept]
            if kept:
                yield kept


class Traced(Struct):
    """A server, its remote target, and what the first request has left."""

    server: Running
    target: FakeProvider
    received: Receiver
    first: dict[str, Any]
    first_calls: list[dict[str, Any]]
    allowed_usd: list[float | None]


def _calls(question: str) -> list[tuple[str, str]]:
    return [
        ("sql", json.dumps({"sql": SQL % question})),
        ("search", json.dumps({"text": "sour lemons", "limit": 2})),
        ("shop__echo", json.dumps({"text": "hi"})),
    ]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("trace")
    with sqlite3.connect(folder / "mails.db") as database:
        database.execute("CREATE TABLE mails (id INTEGER, body TEXT)")
        rows = [(number, f"list all files of user {number % 3}") for number in range(12)]
        database.executemany("INSERT INTO mails VALUES (?, ?)", rows)
    shop = {"command": [sys.executable, str(RAW), "traced"], "allow": ["*"]}
    gateway = McpGateway(read_mcp({"shop": shop}), folder / "headrace.lock")
    gateway.approve("shop", gateway.difference("shop")[0])
    gateway.close()
    with ExitStack() as held:
        url, received = held.enter_context(http_receiver())
        variables = held.enter_context(pytest.MonkeyPatch.context())
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        variables.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        mini = load_model("mini", EngineOptions())
        held.callback(mini.close)
        models = [mini, *load_encoders(folder / "models", held, "embedder")]
        index = Indexes(folder / "search").find_or_make("fruit", IndexMeta(model="embedder", chunk_tokens=32))
        asyncio.run(fill(index, models[1]))
        bad = held.enter_context(running_provider(fail(500)))
        running = server_of(
            *models,
            store=str(folder / "store.sqlite3"),
            node_usd_per_hour=1.0,
            mcp={"shop": shop},
            mcp_lock=str(folder / "headrace.lock"),
            datasets={"mails": f"sqlite:{folder}/mails.db#mails"},
            providers={"bad": {"dialect": "openai_chat", "base_url": bad.url}},
            remote={"best": {"targets": ["bad/x", "mini"]}},
        )
        server = held.enter_context(running)
        service = server.server.config.app.state.service  # type: ignore[union-attr]
        steered = service.handler = Steered(service.handler)
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        reply = ask(server, "first", **parent)
        yield Traced(server, bad, received, reply["explain"], reply["output"], steered.allowed_usd)


def ask(server: Running, question: str, **more: str) -> dict[str, Any]:
    """The reply to a request, with its tree."""
    headers = {"x-headrace-explain": "1"} | more
    reply = server.http().post("/v1/responses", json=BODY | {"input": question}, headers=headers)
    assert reply.status_code == 200, reply.text
    assert [one["status"] for one in reply.json()["output"]] == ["completed"] * 4
    return reply.json()


def within(node: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    """The nodes that are reached by these names, whatever lies between."""
    found = [node]
    for name in names:
        found = [one for top in found for one in below(top) if one["name"] == name]
    return found


def below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for child in node.get("children", ()):
        yield child
        yield from below(child)


def test_parts_are_the_time(traced: Traced) -> None:
    root, shares = traced.first, list[float]()
    while max(shares, default=0.0) < 0.99:  # others may have the processor
        assert len(shares) < 5, shares
        root = ask(traced.server, f"again {len(shares)}")["explain"]
        named = sum(one["measured_s"] for one in root["children"] if one["name"] != "other")
        shares.append(named / root["measured_s"])
    for node in [root, *below(root)]:
        parts = [one for one in node.get("children", ()) if not one.get("detail", {}).get("concurrent")]
        total = sum(one["measured_s"] for one in parts)
        assert not parts or abs(total - node["measured_s"]) < 2e-3, node


def test_each_part_says_what_it_was(traced: Traced) -> None:
    root = traced.first
    [sql] = within(root, "tool", "sql")
    assert (sql["detail"]["rows"], sql["detail"]["datasets"]) == (12, "mails") and sql["detail"]["bytes"] > 50
    [batch] = within(root, "tool", "sql", "ai()")
    assert (batch["detail"]["rows"], batch["detail"]["requests"]) == (3, 3)
    assert batch["detail"]["prompt_tokens"] > 9 and batch["detail"]["output_tokens"] == 12
    requests = within(batch, "request")
    assert len(requests) == 3 and all(within(one, "engine", "decode") for one in requests)
    [search] = within(root, "tool", "search")
    assert search["detail"]["indexes"] == "fruit" and search["detail"]["hits"] == 2
    assert within(search, "embed", "engine") and within(search, "query index")
    echo = [one for one in within(root, "tool") if one["detail"]["tool"] == "shop__echo"]
    assert [one["detail"]["server"] for one in echo] == ["shop"] and echo[0]["detail"]["bytes"] > 50
    first, last = within(root, "model call")
    assert first["detail"]["calls"] == 3 and last["detail"]["calls"] == 0
    tried = [(one["detail"]["target"], one["detail"]["outcome"]) for one in within(first, "attempt")]
    assert tried == [("bad/x", "server"), ("mini", "ok")]
    assert [one["detail"]["attempt"] for one in within(first, "attempt")] == [1, 2]
    assert within(root, "attempt")[0]["error"] == "server" and within(first, "attempt", "engine")


def test_spans_are_one_tree(traced: Traced) -> None:
    received = traced.received
    wait_until(lambda: any(one.parent_span_id.hex() == PARENT for one in received.spans))
    spans = [one for one in received.spans if one.trace_id.hex() == TRACE]
    [root] = [one for one in spans if one.parent_span_id.hex() == PARENT]
    by_id = {one.span_id: one for one in spans}
    assert len(by_id) == len(spans)
    for one in spans:
        assert one is root or one.parent_span_id in by_id
    by_name = {one.name: one for one in spans}
    tools = {name: attributes(one) for name, one in by_name.items() if name.startswith("execute_tool ")}
    assert tools.keys() == {"execute_tool sql", "execute_tool search", "execute_tool shop__echo"}
    assert {one["gen_ai.operation.name"] for one in tools.values()} == {"execute_tool"}
    sql, batch = by_name["SELECT mails"], by_name["ai()"]
    said = attributes(sql)
    assert (said["db.system.name"], said["db.operation.name"]) == ("duckdb", "SELECT") and sql.kind == 3
    assert (said["db.collection.name"], said["db.response.returned_rows"]) == ("mails", 12)
    assert by_id[sql.parent_span_id].name == "execute_tool sql"
    assert by_id[by_id[batch.parent_span_id].parent_span_id] is sql  # within the plan of its calls
    assert by_id[by_name["retrieval fruit"].parent_span_id].name == "execute_tool search"
    attempt = min((one for one in spans if one.name == "chat x"), key=lambda one: one.start_time_unix_nano)
    steps = [one for one in spans if one.name == "chat best"]
    assert attempt.kind == 3 and attempt.status.message == "server" and len(steps) == 3
    told = traced.target.exchanges[0].headers["traceparent"]
    assert told == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    [echo] = [one for one in traced.first_calls if one.get("name") == "echo"]
    span_id = by_name["execute_tool shop__echo"].span_id.hex()
    assert json.loads(echo["output"])["traceparent"] == f"00-{TRACE}-{span_id}-01"
    assert b"ai('Answer" not in received.bytes and b"sour lemons" not in received.bytes


def test_each_part_has_a_line_in_the_ledger(traced: Traced) -> None:
    """What a model of this machine computes, and each attempt at a target: once, with its tokens."""
    service = traced.server.server.config.app.state.service  # type: ignore[union-attr]
    ledger = Ledger(service.ledger)
    before = max(number for number, _ in ledger.entries())
    root = ask(traced.server, "booked")["explain"]
    engines = [one for one in below(root) if one["name"] == "engine"]
    attempts = [one for one in below(root) if one["name"] == "attempt"]
    assert len(engines) == 3 + 1 + 2  # ai() of 3 rows, the search, 2 steps

    def booked() -> list[tuple[int, Entry]]:
        return [(number, one) for number, one in ledger.entries() if number > before and one.model != IDLE]

    wait_until(lambda: len(booked()) >= len(engines) + len(attempts))
    found = booked()
    computed_by = Counter(one.model for _, one in found if one.kind == "machine")
    assert computed_by == {"mini": 5, "embedder": 1}
    tried = sorted(one.target for _, one in found if one.kind == "attempt")
    assert tried == sorted(one["detail"]["target"] for one in attempts)
    assert len({(one.request_id, one.kind, one.attempt) for _, one in found}) == len(found)
    lines = [line for number, one in found if one.kind == "machine" for line in ledger.postings(number)]
    tokens = Counter[str]()
    for line in lines:
        tokens[line.name] += line.quantity
    computed = [one["detail"] for one in engines]
    assert tokens["output"] == sum(one.get("output_tokens", 0) for one in computed), (tokens, computed)


def test_the_money_of_a_request_is_for_all_its_steps(traced: Traced) -> None:
    before = len(traced.allowed_usd)
    body = BODY | {"input": "money", "route": {"max_usd": 0.5}}
    assert traced.server.http().post("/v1/responses", json=body).status_code == 200
    first, second = traced.allowed_usd[before:]
    assert first == 0.5 and second is not None and 0.49 < second < 0.5  # less what the first one took
