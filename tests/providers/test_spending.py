"""What remote attempts cost stands in the ledger of the store, and in the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from fake_provider import HELLO, Gateway, say, usage

from headrace.api.remote_models import RemoteModels
from headrace.config.settings import Settings
from headrace.economy.ledger import Ledger
from headrace.economy.rates import Unpriced
from headrace.economy.recorder import LedgerRecorder
from headrace.errors import UsageError
from headrace.storage.database import Database

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PRICES = {"work/far-1": {"input": 2, "output": 10}}  # dollars per million tokens


def post(server: Any, **more: Any) -> Any:
    return server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK, **more})


def test_attempts_are_booked(gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite3"
    server, _ = gateway(say(*HELLO, usage()), prices=PRICES, store=str(store))
    reply = post(server)
    assert reply.status_code == 200, reply.text
    counts = reply.json()["usage"]
    nano_usd = 2000 * counts["prompt_tokens"] + 10_000 * counts["completion_tokens"]
    assert nano_usd > 0
    assert float(reply.headers["x-headrace-cost-usd"]) * 1e9 == nano_usd
    [(_, entry)] = list(Ledger(Database(store)).entries())
    assert entry.nano_usd == nano_usd and entry.request_id == reply.headers["x-request-id"]


def test_a_request_id_that_is_sent_again_is_booked_again(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite3"
    budgets = {"all": {"usd_per_month": 0.02, "usd_per_request": 0.01}}
    server, _ = gateway(say(*HELLO, usage()), prices=PRICES, budgets=budgets, store=str(store))
    for _ in range(3):
        reply = server.http().post(
            "/v1/chat/completions",
            json={"model": "far", "messages": ASK, "max_tokens": 500},
            headers={"x-request-id": "same"},
        )
        assert reply.status_code == 200 and reply.headers["x-request-id"] == "same", reply.text
    entries = [entry for _, entry in Ledger(Database(store)).entries()]
    assert len({entry.request_id for entry in entries}) == len(entries) == 3
    assert all(entry.request_id.startswith("same.") and entry.nano_usd for entry in entries)


def test_a_budget_refuses_before_anything_is_sent(gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    budgets = {"all": {"usd_per_month": 0.000001}}
    server, provider = gateway(
        say(*HELLO, usage()), prices=PRICES, budgets=budgets, store=str(tmp_path / "store.sqlite3")
    )
    reply = post(server, max_tokens=1000)
    assert reply.status_code in (402, 429), reply.text
    assert "budget" in reply.json()["error"]["message"]
    assert not provider.exchanges


def remote_models(store: Path) -> RemoteModels:
    return RemoteModels(cast("Any", None), Database(store), lambda name: False)


def test_settings_that_are_read_again_bound_and_price_what_follows(tmp_path: Path) -> None:
    remote = remote_models(tmp_path / "store.sqlite3")
    entries = {"far": {"provider": "work", "model": "far-1"}}
    providers = {"work": {"dialect": "openai_chat", "base_url": "http://127.0.0.1:1/v1"}}

    async def run() -> None:
        for usd in (1, 2):
            budgets = {"all": {"usd": usd}}
            remote.update(Settings(providers=providers, prices=PRICES, budgets=budgets), entries)
            ledger = cast("LedgerRecorder", remote.spend)
            assert ledger.budgets.budgets[0].limits == {"total": usd * 10**9}
        remote.update(Settings(providers=providers), entries)
        with pytest.raises(Unpriced):
            ledger.prices.rates("work", "far-1", "standard", 0)
        assert not ledger.budgets.budgets
        await remote.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"budgets": {"all": {"usd_month": 3}}}, "did you mean 'usd_per_month'"),
        ({"prices": {"work/x": {"inputs": 3}}}, "did you mean 'input'"),
        ({"providers": {"work": {"kind": "openia"}}}, "did you mean 'openai'"),
    ],
)
def test_mistakes_are_told_before_there_is_a_remote_model(
    table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        remote_models(tmp_path / "store.sqlite3").update(Settings(**table), {})
