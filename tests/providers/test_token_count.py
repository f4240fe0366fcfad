"""Tokens of prompts to remote models, counted by their providers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_provider import Gateway, fail, send

Start = Callable[..., Gateway]
BODY = {
    "model": "far",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anthropic-key")
    monkeypatch.setenv("GEMINI_API_KEY", "google-key")


def counted(**body: Any) -> Any:
    return send(json.dumps(body).encode(), content_type="application/json")


def test_anthropics(gateway: Start) -> None:
    server, provider = gateway(counted(input_tokens=42), provider={"dialect": "anthropic"})
    reply = server.http().post("/v1/messages/count_tokens", json=BODY)
    assert reply.status_code == 200 and reply.json() == {"input_tokens": 42}, reply.text
    (exchange,) = provider.exchanges
    assert exchange.path == "/v1/messages/count_tokens"
    assert set(exchange.body) == {"model", "system", "messages", "tools"}
    assert exchange.body["model"] == "far-1"


def test_googles(gateway: Start) -> None:
    server, provider = gateway(counted(totalTokens=43), provider={"dialect": "google", "direct": True})
    reply = server.http().post("/v1/messages/count_tokens", json={**BODY, "model": "work/big"})
    assert reply.status_code == 200 and reply.json() == {"input_tokens": 43}, reply.text
    (exchange,) = provider.exchanges
    assert exchange.path.endswith("/models/big:countTokens")
    assert exchange.body["generateContentRequest"]["model"] == "models/big"
    assert exchange.body["generateContentRequest"]["contents"][0]["parts"] == [{"text": "hi"}]


def test_others_are_refused_by_name(gateway: Start) -> None:
    server, provider = gateway()
    reply = server.http().post("/v1/messages/count_tokens", json=BODY)
    assert reply.status_code == 400 and "'far' (work) cannot count tokens" in reply.text
    assert not provider.exchanges


def test_the_key_is_not_shown(gateway: Start) -> None:
    server, _ = gateway(
        fail(400, {"error": {"message": "no anthropic-key", "param": "anthropic-key"}}),
        provider={"dialect": "anthropic"},
    )
    reply = server.http().post("/v1/messages/count_tokens", json=BODY)
    assert reply.status_code == 400 and "no ***" in reply.text and "anthropic-key" not in reply.text


@pytest.mark.parametrize(
    "reply",
    [counted(input_tokens=-1), counted(input_tokens="x"), counted(), fail(500), send(b"", status=200)],
)
def test_what_cannot_be_right_is_an_error(gateway: Start, reply: Any) -> None:
    server, _ = gateway(reply, provider={"dialect": "anthropic"})
    found = server.http().post("/v1/messages/count_tokens", json=BODY)
    assert found.status_code == 502, found.text
    assert "far" in found.text
