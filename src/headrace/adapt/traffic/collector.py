"""Stores exchanges in their order: personal data is taken out, then each is one transaction."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.traffic.examples import Example, ExampleStore, Feedback
from headrace.adapt.traffic.fingerprint import Fingerprint, fingerprint, question_digest
from headrace.chat.messages import Message
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import HeadraceError, InvalidRequest
from headrace.gateway.labels import question_of
from headrace.gateway.privacy import PrivacyCheck
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest
from headrace.inference.store_threads import StoreThreads

LOG = logging.getLogger("headrace.adapt")
MAX_WAITING = 256
"""Exchanges that wait to be stored; more are left out, and counted."""
MAX_CHARACTERS = 32_768
"""Of a conversation; longer ones are left out."""
PATTERNS = "patterns"
TOO_FAST = "came faster than they could be stored"


class TrafficPair(Struct, frozen=True, kw_only=True):
    """A request and its answer as they were: in memory only. `answer` is its text, or its calls as JSON."""

    request: GenerationRequest
    call: CallContext
    answer: str
    outcome: str
    endpoint: str
    model: str
    target: str
    nano_usd: int | None
    total_s: float
    prompt_tokens: int
    completion_tokens: int


class FeedbackGiven(Struct, frozen=True, kw_only=True):
    """Feedback on its way to the store, behind the exchange that it is about."""

    reply_id: str
    call: CallContext
    feedback: Feedback
    is_admin: bool
    done: asyncio.Future[None]


Stored = Callable[[Fingerprint, Example], Awaitable[None]]


class Collector:
    """Lives on the event loop. `runner` runs the detector of names; `stored` is called after each example."""

    def __init__(
        self, store: ExampleStore, settings: AdaptSettings, runner: ModelRunner, stored: Stored | None = None
    ) -> None:
        self.store, self._settings, self._stored = store, settings, stored
        self.privacy = PrivacyCheck(runner)
        self.detector = None if settings.detector == PATTERNS else settings.detector
        self._threads = StoreThreads(1)
        self._waiting: asyncio.Queue[TrafficPair | FeedbackGiven] = asyncio.Queue(MAX_WAITING)
        self._worker: asyncio.Task[None] | None = None
        self._lost = 0

    def put(self, exchange: TrafficPair) -> None:
        """Store an exchange, some time soon."""
        try:
            self._waiting.put_nowait(exchange)
        except asyncio.QueueFull:
            self._lost += 1
        self._start()

    async def give(self, given: FeedbackGiven) -> None:
        """Store feedback after all that came before it; raises what refuses it."""
        await self._waiting.put(given)
        self._start()
        await given.done

    def _start(self) -> None:
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())

    @property
    def is_busy(self) -> bool:
        """Whether more waits to be stored."""
        return not self._waiting.empty()

    async def _work(self) -> None:
        while True:
            item = await self._waiting.get()
            try:
                if isinstance(item, TrafficPair):
                    await self._keep(item)
                else:
                    await self._give(item)
            except HeadraceError as error:  # a full disk costs examples, never requests
                LOG.warning("an example was not kept: %s", error.message)
            except Exception:
                LOG.exception("an example was not kept")
            finally:
                self._waiting.task_done()

    async def _keep(self, exchange: TrafficPair) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            LOG.warning("%d requests were not kept: they %s", lost, TOO_FAST)
            await self._drop(TOO_FAST, lost)
        if _characters(exchange) > MAX_CHARACTERS:
            await self._drop("too long")
            return
        redacted = await self.redacted(_with_answer(exchange), exchange.call)
        if redacted is None:
            await self._drop("personal data that could not be replaced")
            return
        request, answer = _without_answer(redacted)
        print_ = fingerprint(
            request, group=self._settings.group_of(exchange.call.account.name), endpoint=exchange.endpoint
        )
        example = _example(exchange, print_, request, answer)
        kept = await self._threads.run(
            lambda: self.store.add(
                *(print_, example),
                retention_s=self._settings.retention,
                max_of_key=self._settings.max_examples,
            )
        )
        if not kept:
            await self._drop("too many tasks")
        elif self._stored is not None:
            await self._stored(print_, example)

    async def redacted(self, request: GenerationRequest, call: CallContext) -> GenerationRequest | None:
        """The request without personal data; None where it could not be read or replaced."""
        own = call.nested("adapt", background=True)
        return (await self.privacy.check(request, self.detector, own, redacts=True)).redacted

    async def _drop(self, reason: str, count: int = 1) -> None:
        await self._threads.run(lambda: self.store.count_dropped(reason, count))

    async def _give(self, given: FeedbackGiven) -> None:
        try:
            feedback, key = given.feedback, given.call.account.name
            may, now_s = given.is_admin, time.time()
            if feedback.correction:
                # First: one key's useless corrections, each searched by a model, would keep others waiting.
                await self._threads.run(
                    lambda: self.store.example_of(given.reply_id, key, is_admin=may, now_s=now_s)
                )
                asked = CompletionRequest(id="feedback", prompts=(feedback.correction,))
                redacted = await self.redacted(asked, given.call)
                if not isinstance(redacted, CompletionRequest):
                    raise InvalidRequest(
                        "correction has personal data that could not be replaced: send it without",
                        param="correction",
                    )
                feedback = replace(feedback, correction=str(redacted.prompts[0]))
            await self._threads.run(
                lambda: self.store.give_feedback(given.reply_id, key, feedback, is_admin=may, now_s=now_s)
            )
        except Exception as error:
            if not given.done.done():
                given.done.set_exception(error)
        else:
            if not given.done.done():
                given.done.set_result(None)

    async def close(self) -> None:
        """Store what waits, for a moment at most."""
        if self._worker is not None:
            try:
                await asyncio.wait_for(self._waiting.join(), 5.0)
            except TimeoutError:
                LOG.warning("%d examples were not kept: the server stopped", self._waiting.qsize())
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._threads.close()


def _characters(exchange: TrafficPair) -> int:
    request = exchange.request
    if isinstance(request, ChatRequest):
        asked = sum(len(one.content or "") for one in request.messages)
    else:
        asked = sum(map(len, getattr(request, "prompts", ())))
    return asked + len(exchange.answer)


def _with_answer(exchange: TrafficPair) -> GenerationRequest:
    """The request and its answer as one, so that equal data gets equal placeholders in both."""
    request = exchange.request
    if isinstance(request, ChatRequest):
        return replace(request, messages=(*request.messages, Message("assistant", exchange.answer)))
    assert isinstance(request, CompletionRequest)
    return replace(request, prompts=(*request.prompts, exchange.answer))


def _without_answer(redacted: GenerationRequest) -> tuple[GenerationRequest, str]:
    if isinstance(redacted, ChatRequest):
        *messages, answer = redacted.messages
        return replace(redacted, messages=tuple(messages)), answer.content or ""
    assert isinstance(redacted, CompletionRequest)
    *prompts, answer = redacted.prompts
    return replace(redacted, prompts=tuple(prompts)), str(answer)


def _example(exchange: TrafficPair, print_: Fingerprint, request: GenerationRequest, answer: str) -> Example:
    if isinstance(request, ChatRequest):
        messages = [{"role": one.role, "content": one.content} for one in request.messages]
    else:
        messages = [{"role": "user", "content": one} for one in getattr(request, "prompts", ())]
    call = exchange.call
    return Example(
        reply_id=exchange.request.id,
        request_id=call.request_id,
        task=print_.id,
        key_name=call.account.name,
        at_s=call.arrived_unix_s,
        model=exchange.model,
        target=exchange.target,
        messages=msgspec.json.encode(messages),
        question=question_of(request),
        question_digest=question_digest(request),
        answer=answer,
        outcome=_outcome(exchange),
        nano_usd=call.machine_nano_usd or None if exchange.nano_usd is None else exchange.nano_usd,
        first_token_s=call.first_token_s,
        total_s=exchange.total_s,
        prompt_tokens=exchange.prompt_tokens,
        completion_tokens=exchange.completion_tokens,
    )


def _outcome(exchange: TrafficPair) -> str:
    if exchange.outcome != "ok":
        return exchange.outcome
    constraint = exchange.request.constraint
    if constraint is not None and constraint.kind.startswith("json"):
        try:
            json.loads(exchange.answer)
        except (ValueError, RecursionError):
            return "invalid_json"
    return "tool_failed" if _has_failed_tool(exchange.request) else "ok"


def _has_failed_tool(request: GenerationRequest) -> bool:
    """Whether the last tool that ran says that it failed, as programs write it."""
    if not isinstance(request, ChatRequest):
        return False
    results = [one.content or "" for one in request.messages if one.role == "tool"]
    if not results:
        return False
    last = results[-1].lstrip().casefold()
    return last.startswith(("error", "traceback", '{"error"', "{'error'"))
