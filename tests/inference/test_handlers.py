"""The chain of handlers over a handler that computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Text
from headrace.engine.request import Timing, Usage
from headrace.errors import ContextLengthExceeded, ModelLoading, Overloaded
from headrace.inference.accounts import Account, RateLimited
from headrace.inference.admission import AdmissionGate
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
)
from headrace.inference.handler import EventBatches, open_stream
from headrace.inference.handlers import build_chain
from headrace.inference.requests import ChatRequest, InferenceRequest
from headrace.inference.result import collect
from headrace.sampling.params import SamplingParams
from headrace.storage.keys import KeyLimits

REQUEST = ChatRequest(id="r", messages=(Message("user", "hello"),))


class FakeHandler:
    """Answers `ab` to prompts of ten tokens. `refusal` is raised after `Prepared`, `failure` after `a`."""

    def __init__(self, *, max_tokens: int = 20) -> None:
        self.refusal: Exception | None = None
        self.failure: Exception | None = None
        self.max_tokens = max_tokens
        self.closed = 0

    async def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        params = SamplingParams(max_tokens=self.max_tokens)
        try:
            yield [Prepared("fake", (PreparedPrompt(tuple(range(10)), ""),), params)]
            if self.refusal is not None:
                raise self.refusal
            yield [Started()]
            yield [OutputDelta(0, [Text("a")], (1,))]
            if self.failure is not None:
                raise self.failure
            usage = Usage(10, 2, 0)
            call.usages.append(usage)
            ends: Sequence[InferenceEvent] = [
                OutputDelta(0, [Text("b")], (2,)),
                OutputFinished(0, (), "stop", "stop"),
                PromptFinished(0, usage, Timing(0, 0, 0), 7),
            ]
            yield ends
        finally:
            self.closed += 1


def gate(*, max_calls: int = 2, queued: int = 0) -> AdmissionGate:
    return AdmissionGate(max_calls, 100, lambda: queued)


def call(tokens_per_minute: int | None = None, **more: bool) -> CallContext:
    limits = KeyLimits(tokens_per_minute=tokens_per_minute)
    return CallContext(request_id="c", account=Account("key", limits, clock=lambda: 0.0), **more)


def left(context: CallContext) -> int:
    found = dict(context.account.headers())
    return int(found[b"x-ratelimit-remaining-tokens"])


def test_a_request_passes_and_its_tokens_are_settled() -> None:
    async def run() -> None:
        inner, context = FakeHandler(), call(100)
        stream = await open_stream(build_chain(inner, gate()), REQUEST, context)
        assert left(context) == 70  # ten of the prompt and twenty that may come are reserved
        result = await collect(stream)
        [choice] = result.prompts[0].choices
        assert (choice.output.content, choice.ended.reason, choice.tokens) == ("ab", "stop", [1, 2])
        assert left(context) == 88 and inner.closed == 1

    asyncio.run(run())


def test_too_few_tokens_left_refuse_before_anything_is_computed() -> None:
    async def run() -> None:
        inner, context = FakeHandler(max_tokens=1000), call(100)
        context.account.reserve(90)
        with pytest.raises(RateLimited, match="100 are needed"):
            await open_stream(build_chain(inner, gate()), REQUEST, context)
        assert left(context) == 10 and inner.closed == 1

    asyncio.run(run())


@pytest.mark.parametrize("after", ["prepared", "first token"])
def test_what_was_reserved_comes_back_after_an_error(after: str) -> None:
    async def run() -> None:
        inner, context, admission = FakeHandler(), call(100), gate()
        error = ContextLengthExceeded("prompt has 9 tokens, the limit is 8: shorten it")
        inner.refusal, inner.failure = (error, None) if after == "prepared" else (None, error)
        with pytest.raises(ContextLengthExceeded):
            await collect(await open_stream(build_chain(inner, admission), REQUEST, context))
        assert (left(context), inner.closed, admission.open_calls) == (100, 1, 0)

    asyncio.run(run())


def test_closing_a_stream_closes_all_handlers() -> None:
    async def run() -> None:
        inner, context, admission = FakeHandler(), call(100), gate()
        stream = await open_stream(build_chain(inner, admission), REQUEST, context)
        assert admission.open_calls == 1
        async for batch in stream:
            assert batch
            break
        await stream.aclose()
        assert (inner.closed, admission.open_calls, left(context)) == (1, 0, 100)

    asyncio.run(run())


def test_admission() -> None:
    async def run() -> None:
        admission = gate(max_calls=1)
        chain = build_chain(FakeHandler(), admission)
        first = await open_stream(chain, REQUEST, call())
        with pytest.raises(Overloaded, match="1 requests are in progress"):
            await open_stream(chain, REQUEST, call())
        behind = await open_stream(chain, REQUEST, call(background=True))  # its runner counts it
        await behind.aclose()
        await first.aclose()
        admission.starting = True
        with pytest.raises(ModelLoading):
            await open_stream(chain, REQUEST, call())
        admission.starting, admission.draining = False, True
        with pytest.raises(Overloaded, match="shutting down"):
            await open_stream(chain, REQUEST, call(background=True))
        with pytest.raises(Overloaded, match="500 prompt tokens wait"):
            await open_stream(build_chain(FakeHandler(), gate(queued=500)), REQUEST, call())

    asyncio.run(run())


def test_a_call_that_its_surface_admitted_is_counted_once() -> None:
    async def run() -> None:
        admission, context = gate(max_calls=1), call()
        with admission.admitted(context):
            stream = await open_stream(build_chain(FakeHandler(), admission), REQUEST, context)
            assert admission.open_calls == 1
            await collect(stream)
            assert admission.open_calls == 1
        assert admission.open_calls == 0

    asyncio.run(run())
