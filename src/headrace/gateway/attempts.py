"""The only loop of attempts: over the targets of a route, within budgets of attempts, time and money.

The commit point is the first content. Before it another target may take over; after it nothing is repeated.
Where the route's `on_break` is "continue", another one may go on from what was given (`continuation.py`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace.gateway.attempt_run import AttemptRun
from headrace.gateway.continuation import GivenText, goes_on, with_usage_of
from headrace.gateway.hedging import HedgeShare
from headrace.gateway.privacy import Private, Restorer
from headrace.gateway.purse import Purse
from headrace.gateway.routes import LocalTarget, Route
from headrace.gateway.target_state import TargetState
from headrace.inference.attempts import AttemptKind, SpendRecorder
from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, PromptFinished, Started
from headrace.inference.handler import Batch, Handler
from headrace.inference.requests import EmbeddingRequest, GenerationRequest, InferenceRequest
from headrace.providers.capabilities import generates_or_embeds
from headrace.providers.failure import (
    AttemptFailed,
    Failure,
    TargetBusy,
    TargetRefused,
    clamped_wait,
    error_of,
)
from headrace.providers.remote_handler import prepared_for

BACKOFF_S = 0.25
"""Before the second attempt at one target; twice that before the third, and so on."""
MAX_WAIT_S = 5.0
"""A target that asks for a longer wait is not waited for."""
TOTAL_S = 3600.0


class Attempts:
    """The attempts of one request."""

    def __init__(
        self,
        route: Route,
        states: Sequence[TargetState],
        *,
        local: Handler,
        spend: SpendRecorder,
        share: HedgeShare,
        request: InferenceRequest,
        call: CallContext,
        private: Private | None = None,
        purse: Purse | None = None,
        kind: AttemptKind = "first",
        max_attempts: int | None = None,
    ) -> None:
        """`private` has what may be sent to others; `purse` bounds the money of the request. `kind` is that
        of the first attempt."""
        self._private, self._purse = private, purse
        self._kind: AttemptKind = kind
        self._max_attempts = max_attempts or route.settings.max_attempts
        self.winner: AttemptRun | None = None
        """The attempt that answers."""
        self._route, self._local, self._spend, self._share = route, local, spend, share
        self._request, self._call = request, call
        self._asked = request
        self._started = 0
        self._usable = list(states)
        self._requests: dict[TargetState, GenerationRequest | EmbeddingRequest] = {}
        self._refusal: TargetRefused | None = None
        self._last: TargetState | None = None
        self._deadline_s = asyncio.get_running_loop().time() + (request.deadline_s or TOTAL_S)

    def _honored(self, state: TargetState) -> GenerationRequest | EmbeddingRequest | None:
        """What a target gets, None where it cannot honor the request: then it is no longer usable."""
        if state not in self._requests:
            try:
                if state.remote is None:
                    found = _here(self._request, state.name)
                else:
                    found = state.remote.adapted(self._sent(), self._route.settings.drop, self._call)
            except TargetRefused as error:
                self._refusal = self._refusal or error
                self._usable.remove(state)
                return None
            self._requests[state] = found
        return self._requests[state]

    def _sent(self) -> InferenceRequest:
        """What leaves this machine."""
        if self._private is None:
            return self._request
        if self._private.redacted is None:  # the plan has no such target: this only makes sure of it
            raise TargetRefused("the request has personal data, which stays on this machine", param="route")
        return self._private.redacted

    async def batches(self) -> AsyncGenerator[Batch]:
        """The events of the request. Raises TargetRefused where no target can honor it."""
        found = next((one for state in list(self._usable) if (one := self._honored(state))), None)
        if found is None:
            assert self._refusal is not None
            raise self._refusal
        yield [prepared_for(found, self._route.name)]
        run: AttemptRun | None = await self._committed()
        given = self._given()
        while run is not None:
            is_first, broken = self.winner is None, None
            self.winner, restorer = run, self._restorer(run)
            try:
                if is_first:
                    self._note_target(run.state)  # with what follows the headers of a stream are sent
                    yield [Started()]
                async with aclosing(self._given_out(run, given)) as batches:
                    async for batch in batches:
                        yield batch if restorer is None else restorer.batch(batch)
            except AttemptFailed as error:
                broken = error
            finally:
                await run.close()
            run = None if broken is None else await self._gone_on(run, broken, given)

    async def _given_out(self, run: AttemptRun, given: GivenText | None) -> AsyncGenerator[Batch]:
        """The batches of an attempt that has begun to answer. Raises AttemptFailed."""
        before = 0 if given is None else given.tokens
        self._note(run, run.first, is_first=not before)
        run.obey(self._call.stops)
        async with aclosing(_all(run)) as batches:
            async for batch in batches:
                if batch is not run.first:
                    self._note(run, batch)
                if given is not None:
                    given.take(batch)
                yield with_usage_of(before, batch) if before else batch

    def _given(self) -> GivenText | None:
        """What keeps the text of an answer, where another target may go on from it. Where personal data was
        replaced, what the client has is not what the target wrote."""
        may = self._route.settings.on_break == "continue" and self._private is None
        return GivenText() if may else None

    async def _gone_on(
        self, run: AttemptRun, broken: AttemptFailed, given: GivenText | None
    ) -> AttemptRun | None:
        """An attempt that goes on from where one broke off. Raises the error of that one where none can."""
        error, failure = error_of(broken.failure, run.state.name), broken.failure
        request = None
        if given is not None and failure.may_succeed_elsewhere and not failure.is_of_request:
            request = given.continued(self._asked)
        if request is None or given is None or self._call.deferral is not None:
            raise error from broken
        self._request = request
        self._requests.clear()
        self._usable = [one for one in self._usable if goes_on(one, given.text)]
        if not failure.may_succeed_again and run.state in self._usable:
            self._usable.remove(run.state)
        self._call.spent_nano_usd += run.cost_nano_usd or 0
        self._call.no_store = True
        try:
            found = await self._committed(broken)
        except HeadraceError:
            raise error from broken
        self._call.warn(
            "on_break",
            f"the target {run.state.name!r} {failure.message} after {len(given.text):,} characters: "
            f"{found.state.name!r} went on from there",
        )
        return found

    def _restorer(self, run: AttemptRun) -> Restorer | None:
        """What puts personal data back into an answer from elsewhere."""
        private = self._private
        if private is None or not private.vault or run.state.remote is None:
            return None
        wanted = private.redacted.constraint if private.redacted is not None else None
        return Restorer(private, is_json=wanted is not None and wanted.kind.startswith("json"))

    def _note(self, run: AttemptRun, batch: Sequence[InferenceEvent], *, is_first: bool = True) -> None:
        """Keep in the call what the reply and the account have to know."""
        call = self._call
        if batch is run.first:
            self._note_target(run.state)
            if is_first:
                call.first_token_s = time.monotonic() - call.arrival_s
        if run.state.remote is not None:  # a model of this machine counts by itself
            call.usages += [event.usage for event in batch if isinstance(event, PromptFinished)]
        if run.cost_nano_usd is not None:
            spent = run.cost_nano_usd + call.spent_nano_usd
            call.reply_headers["x-headrace-cost-usd"] = f"{spent / 1e9:.9f}"

    def _note_target(self, state: TargetState) -> None:
        self._call.reply_headers["x-headrace-target"] = state.name
        self._call.reply_headers["x-headrace-attempts"] = str(self._call.attempts)

    async def _committed(self, failed: AttemptFailed | None = None) -> AttemptRun:
        """The attempt that has given the first content. Raises the error of the last where none has. `failed`
        is the one before, where there was one."""
        while self._started < self._max_attempts:
            state = await self._next(failed)
            if state is None:
                break
            try:
                return await self._race(state, failed)
            except AttemptFailed as error:
                failed = error
                if not error.failure.may_succeed_elsewhere:
                    break
                if not error.failure.may_succeed_again and self._last in self._usable:
                    self._usable.remove(self._last)
        raise self._exhausted(failed)

    def _exhausted(self, failed: AttemptFailed | None) -> HeadraceError:
        if failed is None:
            return self._all_open()
        assert self._last is not None
        self._note_target(self._last)
        error = error_of(failed.failure, self._last.name, attempts=self._started)
        error.should_retry = False
        return error

    def _all_open(self) -> HeadraceError:
        """The error where every breaker is open."""
        state = min(self._usable, key=lambda one: one.breaker.wait_s)
        cause = state.breaker.cause
        said = "failed" if cause is None else cause.message
        wait_s = max(1.0, state.breaker.wait_s)
        error = TargetBusy(
            f"the target {state.name!r} is left alone for {wait_s:.0f} s after failures: it {said}",
            retry_after_s=wait_s,
            reason="target",
        )
        error.should_retry = False
        return error

    async def _next(self, failed: AttemptFailed | None) -> TargetState | None:
        """The next target, after a pause where it is the one that has just failed; None: there is none."""
        order = list(self._usable)
        if self._last in order:
            at = order.index(self._last) + 1
            order = [*order[at:], *order[:at]]
        for state in order:
            if failed is not None and asyncio.get_running_loop().time() >= self._deadline_s:
                return None
            if self._honored(state) is None or not self._affords(state):
                continue
            if state is self._last and failed is not None and not await self._paused(failed.failure):
                continue
            if state.breaker.begin():
                return state
        return None

    def _affords(self, state: TargetState) -> bool:
        return self._purse is None or self._purse.allows(state)

    async def _paused(self, failure: Failure) -> bool:
        """Wait before the same target is asked again; False where that would take too long."""
        wait_s = BACKOFF_S * 2 ** (self._started - 1) * random.uniform(0.5, 1.0)
        wait_s = max(wait_s, 0.01 + (clamped_wait(failure.retry_after_s) or 0.0))
        if wait_s > MAX_WAIT_S or asyncio.get_running_loop().time() + wait_s > self._deadline_s:
            return False
        await asyncio.sleep(wait_s)
        return True

    async def _race(self, state: TargetState, failed: AttemptFailed | None) -> AttemptRun:
        """An attempt at a target whose breaker has let it begin, and where it is slow, one at the next."""
        kind: AttemptKind = self._kind
        if failed is not None:
            kind = "retry" if state is self._last else "failover"
        self._last = state
        slow_s = state.times.slow_s if self._route.settings.hedge else None
        if slow_s is None:  # nothing races: no tasks are needed
            run = self._made(state, kind)
            await run.open(self._local, self._spend, self._deadline_s)
            return run
        running = [self._begin(state, kind)]
        won: AttemptRun | None = None
        try:
            self._share.count()
            await asyncio.wait(running, timeout=slow_s)
            if not running[0].done() and (other := self._hedge_target(state)) is not None:
                running.append(self._begin(other, "hedge"))
            won = await _first_of(running)
            return won
        finally:
            try:  # shielded: what has succeeded meanwhile must be closed
                await asyncio.shield(_close_others(running, won))
            except asyncio.CancelledError:
                if won is not None:
                    await won.close()
                raise

    def _made(self, state: TargetState, kind: AttemptKind) -> AttemptRun:
        self._started += 1
        self._call.attempts += 1
        if self._purse is not None:
            self._purse.take(state)
        number = self._call.attempts
        return AttemptRun(state, self._requests[state], self._call, number, kind, self._route.name)

    def _begin(self, state: TargetState, kind: AttemptKind) -> asyncio.Task[AttemptRun]:
        run = self._made(state, kind)

        async def opened() -> AttemptRun:
            await run.open(self._local, self._spend, self._deadline_s)
            return run

        return asyncio.ensure_future(opened())

    def _hedge_target(self, slow: TargetState) -> TargetState | None:
        """Another target to ask besides a slow one, if one may be asked."""
        if self._started >= self._max_attempts:
            return None
        for state in list(self._usable):
            if state is slow or isinstance(state.target, LocalTarget):
                continue
            if self._honored(state) is None or not self._affords(state) or state.breaker.state != "closed":
                continue
            return state if self._share.take() else None
        return None


async def _all(run: AttemptRun) -> AsyncGenerator[Batch]:
    """All batches of an attempt that has begun to answer. Raises AttemptFailed."""
    yield run.first
    async with aclosing(run.rest()) as rest:
        async for batch in rest:
            yield batch


async def _first_of(running: Sequence[asyncio.Task[AttemptRun]]) -> AttemptRun:
    """The first attempt that gives content. Raises the error of the first one where all have failed."""
    pending = set(running)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task in done and task.exception() is None:
                return task.result()
    return running[0].result()


async def _close_others(running: Sequence[asyncio.Task[AttemptRun]], won: AttemptRun | None) -> None:
    """Cancel what has not won, and wait until it is closed, also where it has just succeeded."""
    for task in running:
        task.cancel()  # does nothing to one that is done
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(outcome, AttemptRun) and outcome is not won:
            await outcome.close()


def _here(request: InferenceRequest, name: str) -> GenerationRequest | EmbeddingRequest:
    """What a model of this machine gets. Raises TargetRefused."""
    if isinstance(request, EmbeddingRequest) and request.task == "rerank":
        raise TargetRefused(
            f"{name!r} is a model of this machine, whose scores are no other's: name it without a route",
            param="model",
        )
    found = replace(generates_or_embeds(request, name), model=name)
    return replace(found, route=None) if isinstance(found, GenerationRequest) else found
