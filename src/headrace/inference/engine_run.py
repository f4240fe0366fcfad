"""The engine requests of one inference request, and their events as a stream on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    EngineRequest,
    EventCallback,
    PromptLogprobs,
    RequestFailed,
    RequestFinished,
    RequestHandle,
    Timing,
)
from headrace.engine.speculative.lookup_replay import replay_lookup
from headrace.errors import DeadlineExceeded, HeadraceError, NotResumable, Overloaded
from headrace.inference.call_context import CallContext
from headrace.inference.event_bridge import EventBridge
from headrace.journal.call_journal import RecordedRun
from headrace.telemetry.explain_node import EngineTrace
from headrace.telemetry.request_metrics import ModelMetrics, RequestMetrics
from headrace.workers.delivered import DeliveredOutput, Diverged

if TYPE_CHECKING:
    from headrace.engine.client import EngineClient, MemoryPlan

PAUSE_BYTES = 64 * 1024
LIMIT_BYTES = 128 * 1024
PATIENCE_TURNS = 32
"""An engine is paused when PAUSE_BYTES wait for a consumer that is busy. Where it cannot be (beam search) the
request fails when more comes after LIMIT_BYTES, of which the consumer has taken none for PATIENCE_TURNS of
the event loop: the log probabilities of a prompt, or one step of many choices, may be larger than both. Sizes
are estimates of what a surface writes for an event."""
MAX_TRACES = 16
"""Prompts and inputs of a call that are followed where it does not ask to be explained."""
_OVER = RequestHandle("", lambda request_id: None, lambda request_id, paused: None)
"""Of a request that had ended before the server was killed."""
_EVENT_BYTES = 200
_LOGPROB_BYTES = 100

Indexed = tuple[int, list[EngineEvent]]


class SlowReader(Overloaded):
    """The consumer of a stream does not keep up."""

    reason = "slow_reader"


class EngineRun:
    """Submits engine requests and hands out their events, each with the index of its request.

    Lives on the event loop. `finished` resolves when every request has had its terminal event, whatever the
    consumer does; until then their tokens count. `plan` is that of the model, for who asks to be explained;
    of other calls no more than `max_traces` requests are followed.
    """

    def __init__(
        self,
        engine: EngineClient,
        bridge: EventBridge,
        metrics: ModelMetrics,
        call: CallContext,
        requests: int,
        plan: MemoryPlan | None = None,
        max_traces: int = MAX_TRACES,
    ) -> None:
        self._plan, self._answers = plan, list[tuple[EngineRequest, list[int]]]()
        self._max_traces = max_traces
        self._engine, self._bridge, self._call, self._metrics = engine, bridge, call, metrics
        self._handles: list[RequestHandle] = []
        self._meters: list[RequestMetrics] = []
        self._submitted_s = 0.0
        self._waiting: list[Indexed] = []
        self._waiting_bytes = 0
        self._turns = 0  # of the event loop, since more than LIMIT_BYTES wait
        self._wake: asyncio.Future[None] | None = None
        self._asked = self._open = requests
        self._paused = self._cancelled = self._is_awaited = False
        self._failure: HeadraceError | None = None
        self._recorded: RecordedRun | None = None
        self._outputs: list[DeliveredOutput] = []  # of a run that goes on: what is known of each request
        self._over: set[int] = set()  # requests whose end is known
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.finished: asyncio.Future[None] = self._loop.create_future()
        self._ended(0)  # there may be no requests

    def resume(self, recorded: RecordedRun, requests: Sequence[EngineRequest]) -> tuple[EngineRequest, ...]:
        """Record what comes, after what is recorded already. The requests as they are to be submitted.

        DeadlineExceeded where one has no time left.
        """
        self._recorded, self._meters = recorded, self._new_meters(requests)
        outputs = [DeliveredOutput() for _ in requests]
        for index, events in recorded.known:
            outputs[index].take(events)
            if isinstance(events[-1], RequestFinished):
                self._over.add(index)
            self._waiting.append((index, events))
            self._note(index, events)
        if recorded.known:
            self._outputs = outputs
        for output in outputs:
            output.begin_again()
        return tuple(
            self._going_on(index, one, recorded.seeds[index], outputs[index])
            for index, one in enumerate(requests)
        )

    def _going_on(
        self, index: int, request: EngineRequest, seed: int, output: DeliveredOutput
    ) -> EngineRequest:
        if request.params.seed is None:
            request = replace(request, params=replace(request.params, seed=seed))
        journal = self._call.journal
        if journal is None or not journal.is_resumed or index in self._over:
            return request
        if request.deadline_s is not None:
            left_s = request.deadline_s - max(0.0, time.time() - self._call.arrived_unix_s)
            if left_s <= 0:
                raise DeadlineExceeded("the request's deadline has passed: allow more time")
            request = replace(request, deadline_s=left_s)
        if request.params.n == 1 and not request.prediction:  # it catches up at the speed of a prompt
            request = replace(request, prediction=output.only_tokens)
        return request

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Hand the requests to the engine, from any thread. Raises its refusal; then all are cancelled."""
        self._meters = self._meters or self._new_meters(requests)
        self._submitted_s = time.monotonic()
        try:
            for index, request in enumerate(requests):
                if index in self._over:
                    self._take(_OVER)
                else:
                    self._take(self._engine.submit(request, self._sink(index)))
        except BaseException:
            if threading.get_ident() == self._thread:
                self._refused()
            else:
                self._loop.call_soon_threadsafe(self._refused)
            raise

    async def submit_later(self, requests: Sequence[EngineRequest]) -> None:
        """As `submit`, for requests whose constraint is compiled: no thread waits. Cancelled meanwhile, what
        the engine has not begun to compile is dropped."""
        self._meters = self._meters or self._new_meters(requests)
        try:
            for index, request in enumerate(requests):
                if index in self._over:
                    self._take(_OVER)
                    continue
                submitting = self._engine.submit_later(request, self._sink(index))
                try:
                    with self._call.stage("compile grammar"):
                        self._take(await asyncio.wrap_future(submitting))
                except asyncio.CancelledError:
                    if not submitting.cancel() and submitting.exception() is None:  # taken just now
                        self._take(submitting.result())
                    raise
        except BaseException:
            self._refused()
            raise

    def _new_meters(self, requests: Sequence[EngineRequest]) -> list[RequestMetrics]:
        call = self._call
        if call.explain and self._engine.limits.may_speculate:
            self._answers = [(one, list[int]()) for one in requests]
        return [RequestMetrics(self._metrics, call.arrival_s, call.recorded_trace) for _ in requests]

    def _sink(self, index: int) -> EventCallback:
        return self._bridge.sink(lambda events: self._receive(index, events))

    def _take(self, handle: RequestHandle) -> None:
        self._handles.append(handle)
        if self._cancelled:  # meanwhile, on the event loop
            handle.cancel()

    async def next(self) -> list[Indexed]:
        """The events that have arrived, at least one batch; empty at the end. Raises what ended a request."""
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            if self._open == 0:
                return []
            self._wake, self._is_awaited = self._loop.create_future(), True
            try:
                await self._wake
            finally:
                self._is_awaited = False
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._paused:
            self._pause(False)
        return waiting

    def fail(self, error: HeadraceError) -> None:
        """End the stream with `error` and stop what runs."""
        if self._failure is None:
            self._failure = error
            self._call.fail(error)  # a stream that has begun is not refused, so no surface does this
        self.cancel()
        self._notify()

    def stop(self, index: int) -> None:
        """Compute no more of a request. Unlike those of `cancel`, its last events come, with its usage."""
        self._handles[index].cancel()

    def cancel(self) -> None:
        """Stop what has not ended; its pages are free within one step."""
        if not self._cancelled and not self.finished.done():
            self._cancelled = True
            for handle in self._handles:
                handle.cancel()

    def _refused(self) -> None:
        """Not all requests were taken: cancel those that were, and expect the end of these alone."""
        self.cancel()
        self._ended(self._asked - len(self._handles))

    def _ended(self, count: int) -> None:
        self._open -= count
        if self._open == 0 and not self.finished.done():
            self.finished.set_result(None)

    def _receive(self, index: int, events: list[EngineEvent]) -> None:
        if self._outputs:
            events = self._new_events(index, events)
            if not events:
                return
        if self._recorded is None:
            self._accept(index, events)
        else:
            self._recorded.record(index, events, lambda: self._accept(index, events))

    def _new_events(self, index: int, events: list[EngineEvent]) -> list[EngineEvent]:
        """Those that are not known from before the server was killed."""
        try:
            found = self._outputs[index].take(events)
        except Diverged:
            self._handles[index].cancel()
            message = (
                "the server was stopped before this reply ended, and the next one gave another text: "
                "has the model changed? Send it again"
            )
            return [RequestFailed(NotResumable(message))]
        if found and isinstance(done := found[-1], RequestFinished):  # the prediction is nobody's concern
            usage = replace(done.usage, accepted_prediction_tokens=0, rejected_prediction_tokens=0)
            found[-1] = replace(done, usage=usage)
        return found

    def _accept(self, index: int, events: list[EngineEvent]) -> None:
        """Events that the consumer may have."""
        last = events[-1]
        # A failure is raised by `next`. Handed out as a batch, it would look as if the request had begun.
        found = events[:-1] if isinstance(last, RequestFailed) else events
        if found and not self._cancelled:
            if not self._is_awaited:
                self._bound(sum(map(_size, found)))
            self._waiting.append((index, found))
        self._note(index, events)
        self._notify()

    def _note(self, index: int, events: list[EngineEvent]) -> None:
        """Count events."""
        now_s = time.monotonic()
        if self._call.first_token_s is None:
            self._call.first_token_s = now_s - self._call.arrival_s
        self._meters[index].take(events, now_s)
        if self._answers:
            _, answer = self._answers[index]
            answer += [t for one in events if isinstance(one, Delta) and one.choice == 0 for t in one.tokens]
        last = events[-1]
        if not isinstance(last, Delta):
            self._note_end(index, last, events, now_s)

    def _note_end(self, index: int, last: EngineEvent, events: list[EngineEvent], now_s: float) -> None:
        """Note what a request had, if `last` is its last event."""
        if isinstance(last, RequestFailed):
            self.fail(last.error)
            self._ended(1)
        if isinstance(last, RequestFinished):
            self._call.usages.append(last.usage)
            self._call.finish_reasons += [one.reason for one in events if isinstance(one, ChoiceFinished)]
            if self._call.explain or len(self._call.traces) < self._max_traces:
                self._trace(index, last, now_s)
            if last.timing.late_s:
                self._warn_late(last.timing)
            self._ended(1)

    def _trace(self, index: int, last: RequestFinished, now_s: float) -> None:
        arrival_s = self._call.arrival_s
        # What waits for its grammar is submitted by another thread, before this one hears of it.
        submitted_s = min(self._submitted_s or now_s, now_s - last.timing.total_s)
        found = submitted_s - arrival_s, now_s - arrival_s
        known = last.usage, last.timing, last.trace, last.costs
        facts, smaller = ("", 0, 0), 0
        if (plan := self._plan) is not None:
            read = plan.weight_bytes_per_token if plan.reads_memory else 0
            facts = plan.weight_format, read, plan.step_rows
            smaller = plan.smaller_bytes_per_token
        replay = None
        if self._answers:
            request, answer = self._answers[index]
            replay = replay_lookup(request.prompt, answer)
        self._call.traces.append(EngineTrace(*found, *known, *facts, replay, smaller, last.moves))

    def _warn_late(self, timing: Timing) -> None:
        self._call.warn(
            "slo",
            f"the first token was predicted after {1000 * timing.late_s:,.1f} ms and came after "
            f"{1000 * timing.first_token_s:,.1f} ms, the target is {1000 * timing.target_s:,g} ms: "
            "it was served late",
        )

    def _bound(self, more_bytes: int) -> None:
        """Keep what waits for a consumer that is busy within bounds."""
        before, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes + more_bytes
        if before > LIMIT_BYTES and self._turns >= PATIENCE_TURNS:
            self.fail(SlowReader(f"{self._waiting_bytes:,} bytes wait for the reader: read faster"))
        if before <= LIMIT_BYTES < self._waiting_bytes:
            self._turns = 0
            self._loop.call_soon(self._turn)
        if self._waiting_bytes > PAUSE_BYTES and not self._paused:
            self._pause(True)

    def _turn(self) -> None:
        self._turns += 1
        if self._turns < PATIENCE_TURNS and self._waiting_bytes > LIMIT_BYTES:
            self._loop.call_soon(self._turn)

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for handle in self._handles:
            handle.pause(paused)

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _size(event: EngineEvent) -> int:
    """About how many bytes a surface writes for an event."""
    if isinstance(event, Delta):
        logprobs = sum(1 + len(entry.top) for entry in event.logprobs)
        return _EVENT_BYTES + len(event.text) + _LOGPROB_BYTES * logprobs
    if isinstance(event, PromptLogprobs):
        return _LOGPROB_BYTES * sum(1 + len(entry.top) for entry in event.logprobs)
    return 0  # one for each choice, prompt or input: the request itself bounds them
