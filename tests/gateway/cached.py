"""A cache over a handler whose answers are known, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Text
from headrace.config.cache_settings import CacheSettings
from headrace.engine.request import Timing, Usage
from headrace.gateway.caching_handler import CachingHandler
from headrace.gateway.near_questions import NearQuestions
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.events import (
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
)
from headrace.inference.handler import Batch
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.sampling.params import SamplingParams, with_defaults
from headrace.storage.cached_answers import open_cache
from headrace.storage.keys import KeyLimits


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Echo:
    """Answers with the number of the computation and the last message, a word a batch."""

    def __init__(self, reply: Callable[[ChatRequest, int], str] | None = None) -> None:
        self.requests: list[ChatRequest] = []
        self.calls: list[CallContext] = []
        self.keeps = True
        self.cancelled = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.reason = "stop"
        self._reply = reply or (lambda request, number: f"{number} says {request.messages[-1].content}")

    async def handle(self, request: Any, call: CallContext) -> AsyncGenerator[Batch]:
        self.requests.append(request)
        self.calls.append(call)
        call.no_store = not self.keeps
        text = self._reply(request, len(self.requests))
        call.model = "m"
        try:
            yield [Prepared("m", (PreparedPrompt((1, 2, 3), ""),), SamplingParams(temperature=0))]
            yield [Started()]
            for place, word in enumerate(text.split(" ")):
                await self.hold.wait()
                yield [OutputDelta(0, [Text(word if not place else f" {word}")], (place,))]
            ended = OutputFinished(0, [], self.reason, "stop" if self.reason == "tool_calls" else self.reason)  # type: ignore[arg-type]
            yield [ended, PromptFinished(0, Usage(3, 5, 0), Timing(0, 0.1, 0.2), 7)]
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise


def account(name: str = "") -> Account:
    limits = KeyLimits(None, None, None, None)
    return Account(name, limits, cache_salt=name and f"salt of {name}")


def call_of(name: str = "", **more: Any) -> CallContext:
    return CallContext(request_id=new_request_id(), account=account(name), **more)


def chat(text: str = "hello", **fields: Any) -> ChatRequest:
    sampling = fields.pop("sampling", {"temperature": 0})
    messages = fields.pop("messages", (Message("user", text),))
    return ChatRequest(id=new_request_id(), sampling=sampling, messages=messages, **fields)


class Cached:
    """A caching handler over `inner`, with what a test changes about it."""

    def __init__(
        self,
        inner: Any,
        path: Path | None = None,
        *,
        wall: Clock | None = None,
        monotonic: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.wall, self.monotonic = wall or Clock(), monotonic or Clock(0.0)
        self.settings = CacheSettings(**settings)
        self.cache = ResponseCache(
            open_cache(path),
            limit_bytes=self.settings.bytes,
            ttl_s=self.settings.ttl,
            wall=self.wall,
            monotonic=self.monotonic,
        )
        self.digest, self.is_local = b"weights", True
        near = None if self.settings.near == "off" else NearQuestions(self.cache, self.settings.risk)
        self.near = near
        self.handler = CachingHandler(
            inner, self.cache, self.settings, self.identify, is_idle=lambda: True, near=near
        )
        self.handler.audits._draw = lambda: 1.0  # no audits, unless a test wants them: answers are no model's

    async def identify(self, request: GenerationRequest, call: CallContext) -> ModelIdentity:
        params = with_defaults(SamplingParams(), request.sampling) if self.is_local else None
        return ModelIdentity(name="m", digest=self.digest, params=params, is_local=self.is_local)

    async def ask(
        self, request: ChatRequest, call: CallContext | None = None
    ) -> tuple[str, list[Batch], str]:
        """The text, the batches, and what the header says."""
        call = call or call_of()
        batches: list[Batch] = []
        source: Any = self.handler.handle(request, call)
        async with aclosing(source):
            async for batch in source:
                batches.append(batch)
        await self.settled()
        return text(batches), batches, call.reply_headers["x-headrace-cache"]

    async def settled(self) -> None:
        """Everything that was computed is kept."""
        for _ in range(5):
            await asyncio.sleep(0)
        await self.handler.close()
        await self.cache.in_thread(lambda: None)
        await asyncio.sleep(0)


def text(batches: list[Batch]) -> str:
    parts = [
        part.text
        for batch in batches
        for event in batch
        if isinstance(event, OutputDelta | OutputFinished)
        for part in event.parts
        if isinstance(part, Text)
    ]
    return "".join(parts)
