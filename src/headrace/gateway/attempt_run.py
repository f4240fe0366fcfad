"""One attempt with its money: set aside before it, booked after it, whatever becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from headrace.errors import ContextLengthExceeded, HeadraceError, InvalidRequest, Overloaded
from headrace.gateway.reservation import Reservation, reserved
from headrace.gateway.target_state import TargetState
from headrace.inference.attempts import Attempt, AttemptKind, Billed, Hold, SpendRecorder, TokenCounts
from headrace.inference.batches.deferral import Deferred, DeferredLine
from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, OutputDelta, Prepared, PromptFinished, Started
from headrace.inference.handler import Batch, Handler
from headrace.inference.requests import CompletionRequest, EmbeddingRequest, GenerationRequest
from headrace.providers.failure import AttemptFailed, Failure
from headrace.providers.remote_attempt import BATCH, RemoteAttempt, prompt_tokens
from headrace.providers.remote_embedding import RemoteEmbedding
from headrace.providers.usage import ReportedUsage
from headrace.telemetry.explain_node import Stage
from headrace.telemetry.trace_context import child_of

ATTEMPT = "attempt"
"""The name of the stage that an attempt is."""
PATIENCE_S = 30.0
"""A target that does not keep a shorter deadline of a request has not failed."""


class AttemptRun:
    """An attempt at one target. `open` it, read `rest` to its end, and `close` it in any case."""

    def __init__(
        self,
        state: TargetState,
        request: GenerationRequest | EmbeddingRequest,
        call: CallContext,
        number: int,
        kind: AttemptKind,
        route: str,
    ) -> None:
        self.state = state
        self.first: Batch = ()
        """The batch with the first content."""
        self.cost_nano_usd: int | None = None
        self._kind: AttemptKind = kind
        self._request, self._call, self._number, self._route = request, call, number, route
        self._batches: AsyncGenerator[Batch] | None = None
        self._remote: RemoteAttempt | RemoteEmbedding | None = None
        self._hold: Hold | None = None
        self._spend: SpendRecorder | None = None
        self._start_s, self._start_unix_s = time.monotonic(), time.time()
        self._trace = child_of(call.trace) if state.remote is not None else call.trace
        self._first_s: float | None = None
        self._usage = ReportedUsage()
        self._failure: Failure | None = None
        self._stopped: set[int] = set()
        self._is_complete = False
        self._is_hurried = False
        self._is_open = False
        self._is_later = False  # its answer was in a provider's batch, which says nothing of the target now
        self._prepared: Prepared | None = None
        self._has_own_limit = False

    async def open(self, local: Handler, spend: SpendRecorder, deadline_s: float) -> None:
        """Set money aside, send the request, and wait for the first content.

        Raises AttemptFailed, or the error of a budget. Then, and if it is cancelled, it is closed.
        """
        state = self.state
        state.in_flight, self._is_open = state.in_flight + 1, True
        self._is_hurried = deadline_s - asyncio.get_running_loop().time() < PATIENCE_S
        try:
            reservation = await self._reserved(spend)
            self._spend, self._hold = spend, reservation.hold
            self._has_own_limit = "max_tokens" not in _sampling(self._request)
            self._request = reservation.request
            if state.remote is None:
                self._batches = self._local_batches(local)
            else:
                self._remote = state.remote.attempt(
                    self._request, self._call, deadline_s=deadline_s, trace=self._trace
                )
                self._batches = self._remote.batches()
            self.first = await anext(self._batches)
            self._first_s = time.monotonic() - self._start_s
            await self._look(self.first)
            for name, message in reservation.warnings.items():
                self._call.warn(name, message)
            if reservation.is_less:  # the next one may get all of it
                self._call.no_store = True
        except StopAsyncIteration:
            await self._fail(Failure(phase="end", kind="truncated", message="answered nothing", billed="yes"))
        except AttemptFailed as error:
            await self._fail(self._with_own_limit(error.failure))
        except Deferred as later:
            await self._defer(later)
            raise
        except BaseException:
            await self.close()
            raise

    async def _reserved(self, spend: SpendRecorder) -> Reservation:
        """The money for it: where a provider's batch has answered, what was set aside when it was asked."""
        deferral = self._call.deferral
        answer = None if deferral is None else deferral.for_target(self.state.name)
        if answer is None:
            usual = "standard" if isinstance(self._request, EmbeddingRequest) else self.state.tier
            processing = BATCH if self._defers else usual
            return await reserved(
                spend, self.state, self._request, self._call, self._route, processing=processing
            )
        self._start_unix_s, self._is_later = answer.started_unix_s, True
        return Reservation(answer.hold, self._request)

    @property
    def _defers(self) -> bool:
        """Whether it gets a place in a provider's batch."""
        deferral, remote = self._call.deferral, self.state.remote
        may = deferral is not None and deferral.otherwise == "defer"
        return may and remote is not None and remote.target.batches

    async def _defer(self, later: Deferred) -> None:
        """Hand over what will be sent with the money for it, which is settled when the answer is there."""
        hold, self._hold = self._hold, None
        assert hold is not None and self._call.deferral is not None
        self._call.deferral.asked = DeferredLine(
            target=self.state.name,
            path=later.path,
            body=later.body,
            hold=hold,
            started_unix_s=self._start_unix_s,
        )
        await self.close()

    async def rest(self) -> AsyncGenerator[Batch]:
        """The batches after the first. Raises AttemptFailed."""
        assert self._batches is not None
        try:
            while not self._is_cut and (batch := await anext(self._batches, None)) is not None:
                await self._look(batch)
                yield batch
            if isinstance(self._remote, RemoteAttempt) and self._is_cut and not self._is_complete:
                await self.close()
                yield self._remote.cut()
            elif not self._is_complete:
                raise AttemptFailed(
                    Failure(phase="end", kind="truncated", message="ended without an end", billed="yes")
                )
        except AttemptFailed as error:
            await self._fail(error.failure)

    def obey(self, stops: dict[str, Callable[[int], None]]) -> None:
        """End the answer of a remote target when all its prompts are stopped by `CallContext.stops`."""
        if self._remote is not None:
            stops[self._request.id] = self._stopped.add

    @property
    def _is_cut(self) -> bool:
        """Whether what follows of all prompts is wanted no more, such as after a guard."""
        request = self._request
        prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
        return len(self._stopped) == prompts

    async def _look(self, batch: Batch) -> None:
        """Book the attempt before its last batch goes out, so that the reply can say what it cost."""
        if not any(isinstance(event, PromptFinished) for event in batch):
            return
        self._is_complete = True
        if self._remote is not None:
            self._usage = self._remote.usage
        else:
            self._usage = ReportedUsage(_local_tokens(batch))
        if self._is_later:
            self.state.breaker.dropped()
        else:
            self.state.breaker.succeeded()
        if self._first_s is not None and not self._is_later and not self._is_given_again:
            self.state.times.add(self._first_s)
            self._measure(self._first_s)
        await self._settle("ok", "yes")

    def _measure(self, first_s: float) -> None:
        if not isinstance(self._request, GenerationRequest):
            return
        tokens = self._usage.tokens
        output = 0 if tokens is None else tokens.output + tokens.reasoning
        total_s = time.monotonic() - self._start_s
        self.state.speed.add(prompt_tokens(self._request), output, first_s, total_s)

    def _with_own_limit(self, failure: Failure) -> Failure:
        """A prompt and an answer that are too long, where the caller has set no limit of the answer."""
        most = _sampling(self._request).get("max_tokens")
        if failure.kind != "context" or most is None or not self._has_own_limit:
            return failure
        remedy = f"send max_tokens, or set max_output_tokens of [models.{self.state.name}]"
        said = f"{failure.message} (a budget needs a limit, and none was sent: {most:,} was added; {remedy})"
        return replace(failure, message=said)

    async def _fail(self, failure: Failure) -> None:
        """Close it, and raise AttemptFailed."""
        if failure.kind == "timeout" and self._is_hurried:
            failure = replace(failure, is_of_request=True)
        self._failure = failure
        await self.close()
        raise AttemptFailed(failure)

    async def close(self) -> None:
        """Stop what is running and book what it came to; a second call changes nothing. What was set aside is
        released even where this is cancelled."""
        if self._hold is None:  # nothing has to be booked: no task is needed
            await self._closed()
        else:
            await asyncio.shield(self._closed())

    async def _closed(self) -> None:
        if self._is_open:
            self.state.in_flight, self._is_open = self.state.in_flight - 1, False
        batches, self._batches = self._batches, None
        if batches is not None:
            await batches.aclose()
        if self._remote is not None:
            self._usage = self._remote.usage
        if self._failure is not None:
            if self._is_later:
                self.state.breaker.dropped()
            else:
                self.state.breaker.failed(self._failure)
            await self._settle(self._failure.kind, self._failure.billed)
        elif not self._is_complete:
            self.state.breaker.dropped()
            was_sent = self._remote is None or self._remote.was_sent
            await self._settle("cancelled", "maybe" if was_sent else "no")

    async def _settle(self, outcome: str, billed: Billed) -> None:
        hold, self._hold = self._hold, None
        if hold is None or self._spend is None:
            return
        if self._is_given_again:
            self.cost_nano_usd = 0
            await self._spend.release(hold)
            return
        state = self.state
        attempt = Attempt(
            request_id=self._call.booking_id,
            number=self._number,
            kind=self._kind,
            account=self._call.account.name,
            target=state.name,
            provider=state.provider,
            provider_model=state.provider_model,
            started_unix_s=self._start_unix_s,
            elapsed_s=time.monotonic() - self._start_s,
            first_content_s=self._first_s,
            outcome=outcome,
            billed=billed,
            tokens=self._usage.tokens,
            raw_usage=self._usage.raw,
            reported_nano_usd=self._usage.nano_usd,
            processing="standard" if self._remote is None else self._remote.tier,
            route=self._route,
            plausible=None if self._remote is None else self._remote.plausible,
        )
        self.cost_nano_usd = await self._spend.settle(hold, attempt)
        if self.state.remote is not None:
            self._call.remote_nano_usd += self.cost_nano_usd or 0
        self._note(attempt, time.monotonic() - self._call.arrival_s)

    @property
    def _is_given_again(self) -> bool:
        """Whether a model of this machine did not compute it: it was kept, or another call pays for it."""
        return self.state.remote is None and self._call.is_given_again

    def _note(self, attempt: Attempt, ended_s: float) -> None:
        """The attempt as a part of its call. What a model of this machine did for it lies within its time."""
        is_remote, tokens = self.state.remote is not None, attempt.tokens
        detail: dict[str, Any] = {
            "target": attempt.target,
            "provider": attempt.provider,
            "model": attempt.provider_model,
            "attempt": attempt.number,
            "kind": attempt.kind,
            "outcome": attempt.outcome,
            "usd": None if self.cost_nano_usd is None else self.cost_nano_usd / 1e9,
        }
        if tokens is not None:
            detail |= {"prompt_tokens": tokens.input + tokens.cache_read, "output_tokens": tokens.output}
        self._call.add_stage(
            Stage(
                *(ATTEMPT, self._start_s - self._call.arrival_s, ended_s, detail),
                is_whole=is_remote,
                span_id=self._trace.span_id if is_remote else "",
                error="" if attempt.outcome == "ok" else attempt.outcome,
            )
        )

    @property
    def fingerprint(self) -> str | None:
        """The provider's word for what has answered, or that for the weights of a model of this machine."""
        if self._remote is not None:
            return self._remote.fingerprint
        return None if self._prepared is None else self._prepared.fingerprint

    async def _local_batches(self, local: Handler) -> AsyncGenerator[Batch]:
        """The batches of a model of this machine from the first content on; its errors as AttemptFailed."""
        held: list[InferenceEvent] = []
        self._call.route, self._call.is_given_again = self._route, False
        try:
            async with aclosing(local.handle(self._request, self._call)) as batches:
                async for batch in batches:
                    for event in batch:
                        if isinstance(event, Prepared):
                            self._prepared = event
                        elif not isinstance(event, Started):
                            held.append(event)
                    if any(not isinstance(event, OutputDelta) or event.parts for event in held):
                        yield held
                        held = []
        except HeadraceError as error:
            raise AttemptFailed(local_failure(error)) from error
        if held:
            yield held


def _sampling(request: GenerationRequest | EmbeddingRequest) -> Mapping[str, Any]:
    return {} if isinstance(request, EmbeddingRequest) else request.sampling


def _local_tokens(batch: Batch) -> TokenCounts:
    ends = [event.usage for event in batch if isinstance(event, PromptFinished)]
    cached = sum(one.cached_tokens for one in ends)
    return TokenCounts(
        input=sum(one.prompt_tokens for one in ends) - cached,
        cache_read=cached,
        output=sum(one.completion_tokens for one in ends),
    )


def local_failure(error: HeadraceError) -> Failure:
    """What an error of a model of this machine means to the loop of attempts."""
    wait_s = None
    if isinstance(error, Overloaded):
        kind, wait_s = "overloaded", error.retry_after_s
    elif isinstance(error, ContextLengthExceeded):
        kind = "context"
    elif isinstance(error, InvalidRequest):
        kind = "invalid"
    elif error.status == 404:
        kind = "missing"
    elif error.status in (408, 504):
        kind = "timeout"
    else:
        kind = "server"
    return Failure(
        phase="headers",
        kind=kind,
        message=f"says: {error.message}",
        status=error.status,
        retry_after_s=wait_s,
        param=error.param,
    )
