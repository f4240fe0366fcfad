"""One attempt at one target: what it sends, what it makes of the stream, how it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_provider import FakeProvider, fail, running_provider

from headrace.chat.messages import Message
from headrace.chat.output_parser import ParsedOutput
from headrace.errors import HeadraceError
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import OutputDelta, OutputFinished, PromptFinished
from headrace.inference.requests import ChatRequest
from headrace.providers.remote_handler import RemoteHandler
from headrace.providers.target import RemoteTarget, read_providers
from headrace.providers.upstream import Upstream
from headrace.storage.keys import KeyLimits


def chat(**more: Any) -> ChatRequest:
    return ChatRequest(id="r", messages=(Message("user", "hi"),), **more)


def ask(provider: FakeProvider, request: ChatRequest, **settings: Any) -> tuple[list[Any], CallContext]:
    """The events of a request, and its call."""
    call = CallContext(request_id="r", account=Account("", KeyLimits()))

    async def run() -> list[Any]:
        table = {"work": {"base_url": provider.url, "dialect": "openai_chat", **settings}}
        known = read_providers(table)["work"]
        upstream = Upstream(known.base_url, known.settings)
        target = RemoteTarget(name="far", provider=known, model="far-1")
        handler = RemoteHandler(target, upstream, lambda: "secret-key", "here")
        try:
            return [event async for batch in handler.handle(request, call) for event in batch]
        finally:
            await upstream.close()

    return asyncio.run(run()), call


def text_of(found: list[Any]) -> str:
    output = ParsedOutput()
    for event in found:
        if isinstance(event, OutputDelta | OutputFinished):
            output.take(event.parts)
    return output.content


def test_a_stream_becomes_events() -> None:
    with running_provider() as provider:
        found, call = ask(provider, chat(sampling={"temperature": 0.5, "max_tokens": 9}))
    assert text_of(found) == "Hello"
    [ended] = [event for event in found if isinstance(event, OutputFinished)]
    [finished] = [event for event in found if isinstance(event, PromptFinished)]
    assert ended.reason == "stop" and found[-1] is finished
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 3)
    [exchange] = provider.exchanges
    assert exchange.headers["authorization"] == "Bearer secret-key"
    assert exchange.body == {
        "model": "far-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "max_tokens": 9,
    }
    assert not call.warnings


def test_errors_are_typed_and_name_the_target() -> None:
    with running_provider(fail(429, retry_after="7")) as provider, pytest.raises(HeadraceError) as caught:
        ask(provider, chat())
    assert caught.value.status == 429 and "'far'" in caught.value.message
    assert getattr(caught.value, "retry_after_s", 0) == 7
