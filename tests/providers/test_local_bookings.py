"""What models of this machine do for a route stands in the ledger once, and money for others always."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake import FakeModel
from fake_provider import HELLO, Gateway, say, usage

from headrace.config.providers import RemoteModelSettings
from headrace.economy.ledger import Ledger
from headrace.economy.report import spend_by
from headrace.gateway.gate import GateStore, Pair, calibrate
from headrace.storage.database import Database

HERE = FakeModel().name
PRICES = {"work/far-1": {"input": 2, "output": 10}}  # dollars per million tokens


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def post(server: Any, **more: Any) -> Any:
    asked = [{"role": "user", "content": "hi"}]
    body = {"model": "auto", "messages": asked, "temperature": 0, "max_tokens": 3, **more}
    return server.http().post("/v1/chat/completions", json=body)


def test_tokens_of_a_route_are_booked_once_and_those_of_the_cache_never(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite3"
    more: dict[str, Any] = {"cache": {"exact": "auto"}, "node_usd_per_hour": 1.0, "store": str(store)}
    server, _ = gateway(say(*HELLO, usage()), remote={"auto": {"targets": [HERE, "far"]}}, **more)
    first = post(server)
    assert first.status_code == 200 and first.headers["x-headrace-cache"] == "none", first.text
    until(lambda: len(list(Ledger(Database(store)).entries())) == 2)
    again = post(server)
    assert again.headers["x-headrace-cache"] == "exact" and again.headers["x-headrace-target"] == HERE
    assert again.headers["x-headrace-attempts"] == first.headers["x-headrace-attempts"] == "1"
    counts, [row] = first.json()["usage"], spend_by(Database(store), "route")
    assert (row.name, row.attempts) == ("auto", 1) and row.nano_usd > 0
    assert (row.input_tokens, row.output_tokens) == (counts["prompt_tokens"], counts["completion_tokens"])


def test_the_large_model_of_a_cascade_is_booked_with_a_cache_too(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite3"
    remote = {"auto": {"targets": [HERE, "far"], "route": "cascade"}}
    more: dict[str, Any] = {"cache": {"exact": "auto"}, "prices": PRICES, "store": str(store)}
    server, _ = gateway(say(*HELLO, usage()), remote=remote, **more)
    asked = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "label": "x"}
    pair = server.http().post("/v1/routes/score", json=asked).json()
    settings = RemoteModelSettings(targets=(HERE, "far"), route="cascade")
    pairs = [Pair(score=-place / 200, is_wrong=False) for place in range(400)]
    names = {"small": pair["small_model"], "large": pair["large_model"]}
    GateStore(Database(store)).save(
        calibrate(pairs, route="auto", settings=settings, task="t", risk=0.05, **names)
    )
    before = len(list(Ledger(Database(store)).entries()))
    reply = post(server)  # the small answer is cut off, so it is not taken
    assert reply.headers["x-headrace-target"] == "far" and "warnings" not in reply.json(), reply.text
    entries = [entry for _, entry in Ledger(Database(store)).entries()][before:]
    assert [(one.attempt, one.target) for one in entries] == [(1, HERE), (2, "far")]
    assert entries[1].nano_usd > 0
    assert float(reply.headers["x-headrace-cost-usd"]) * 1e9 == entries[1].nano_usd
