"""Ways of processing of providers: what is asked for, and whose price is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_provider import HELLO, Gateway, delta, say, usage

from headrace.errors import UsageError
from headrace.gateway.routes import read_routes
from headrace.providers.target import read_providers

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PRICES: dict[str, Any] = {
    "work/far-1": [
        {"input": 10, "output": 10},
        {"processing": "flex", "input": 5, "output": 5},
        {"processing": "priority", "input": 20, "output": 20},
    ]
}


@pytest.mark.parametrize(("served", "usd"), [(None, 40e-6), ("flex", 40e-6), ("default", 80e-6)])
def test_the_price_is_that_of_what_was_done(
    gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, served: str | None, usd: float
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "some-key")
    last = delta(finish="stop") | ({} if served is None else {"service_tier": served})
    server, provider = gateway(
        say(*HELLO[:-1], last, usage()), provider={"kind": "openai"}, model={"tier": "flex"}, prices=PRICES
    )
    reply = server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK})
    assert reply.status_code == 200, reply.text
    assert provider.exchanges[0].body["service_tier"] == "flex"
    assert float(reply.headers["x-headrace-cost-usd"]) == pytest.approx(usd)


def test_a_tier_without_a_price_is_refused_where_a_budget_is_kept(
    gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "some-key")
    server, provider = gateway(
        provider={"kind": "openai"},
        model={"tier": "priority"},
        prices={"work/far-1": {"input": 10, "output": 10}},
        budgets={"all": {"usd": 1}},
    )
    reply = server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK})
    assert reply.status_code >= 400 and "priority" in reply.json()["error"]["message"], reply.text
    assert not provider.exchanges


@pytest.mark.parametrize(
    ("kind", "entry", "said"),
    [
        ("openai", {"tier": "batch"}, "flex"),
        ("groq", {"tier": "priority"}, "it takes: flex"),
        ("mistral", {"tier": "flex"}, "it takes: none"),
    ],
)
def test_tiers_that_a_provider_does_not_have_are_refused(kind: str, entry: Any, said: str) -> None:
    providers = read_providers({"p": {"kind": kind}})
    with pytest.raises(UsageError, match=said):
        read_routes({"m": {"provider": "p", **entry}}, providers)
