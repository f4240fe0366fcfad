"""A request to one remote target, without a server: its events and its call."""

from __future__ import annotations

import asyncio
from typing import Any

from fake_provider import FakeProvider

from headrace.chat.messages import Message
from headrace.chat.output_parser import ParsedOutput
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import OutputDelta, OutputFinished
from headrace.inference.requests import ChatRequest
from headrace.providers.remote_handler import RemoteHandler
from headrace.providers.target import RemoteTarget, read_providers
from headrace.providers.upstream import Upstream
from headrace.storage.keys import KeyLimits


def chat(*messages: Message, **more: Any) -> ChatRequest:
    return ChatRequest(id="r", messages=messages or (Message("user", "hi"),), **more)


def ask(
    provider: FakeProvider, request: ChatRequest, *, name: str = "work", **settings: Any
) -> tuple[list[Any], CallContext]:
    """The events of a request, and its call."""
    call = CallContext(request_id="r", account=Account("", KeyLimits()))

    async def run() -> list[Any]:
        given = {"base_url": provider.url, "dialect": "openai_chat", **settings}
        table = {name: {key: value for key, value in given.items() if value is not None}}
        known = read_providers(table)[name]
        upstream = Upstream(known.base_url, known.settings)
        target = RemoteTarget(name="far", provider=known, model="far-1")
        handler = RemoteHandler(target, upstream, lambda: "secret-key", "here")
        try:
            return [event async for batch in handler.handle(request, call) for event in batch]
        finally:
            await upstream.close()

    return asyncio.run(run()), call


def parsed(found: list[Any]) -> ParsedOutput:
    """Text, reasoning and calls."""
    output = ParsedOutput()
    for event in found:
        if isinstance(event, OutputDelta | OutputFinished):
            output.take(event.parts)
    return output


def text_of(found: list[Any]) -> str:
    return parsed(found).content
