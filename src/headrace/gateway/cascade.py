"""A cascade: the small model answers, and its answer goes out only where its score is certified.

Nothing of a small answer is sent before it is accepted: acceptance is the commit point. A part of the
accepted requests is answered by the large model, too, afterwards; what that finds can close the gate.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import HeadraceError, InvalidRequest
from headrace.gateway.answers import TOP, same, same_text, score_of
from headrace.gateway.attempts import Attempts
from headrace.gateway.gate import Calibration, Gate, GateStore, agrees, identity, problem_of
from headrace.gateway.labels import question_of
from headrace.gateway.privacy import Private
from headrace.gateway.routes import Route
from headrace.gateway.target_state import TargetState
from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, OutputDelta, OutputFinished
from headrace.inference.handler import Batch
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import CompletionRequest, GenerationRequest, RouteWishes
from headrace.inference.result import ChoiceResult
from headrace.providers.bounds import choices_of
from headrace.tasks.classify import classify

LOG = logging.getLogger("headrace.gateway")
KEPT_S = 2.0
"""A gate is read again from the store after that: another process may have closed it."""
MAX_AUDITS = 8
"""Under way at the same time, of all routes."""
WHOLE = ("stop", "tool_calls")
"""Ends of an answer that is whole."""


class SmallAnswer(Struct):
    """The small model's answer: its events, what they make, its score, and which model gave it."""

    batches: list[Batch]
    choice: ChoiceResult
    score: float | None
    identity: str


class Scored(Struct, frozen=True, kw_only=True):
    """A pair for calibration: both answers, the small one's score, and whether it is wrong."""

    small: str
    large: str
    score: float | None
    is_wrong: bool
    small_model: str
    large_model: str


class Gates:
    """The gates of all cascades of this process, and their audits. Lives on one event loop."""

    def __init__(self, store: GateStore, runner: ModelRunner | None) -> None:
        self._store, self.runner = store, runner
        self._kept: dict[str, tuple[float, Gate]] = {}
        self._audits: set[asyncio.Task[None]] = set()

    async def gate(self, route: str) -> Gate:
        """The gate of a route. One that cannot be read is closed."""
        known = self._kept.get(route)
        if known is not None and time.monotonic() - known[0] < KEPT_S:
            return known[1]
        try:
            found = await asyncio.to_thread(self._store.read, route)
        except HeadraceError as error:
            return Gate(None, f"its certificate cannot be read: {error.message}")
        self._kept[route] = time.monotonic(), found
        return found

    async def count(self, route: str, calibration: Calibration, is_wrong: bool) -> None:
        """Keep the outcome of an audit."""
        if await asyncio.to_thread(self._store.audit, route, calibration.digest, is_wrong):
            LOG.warning("the gate of the route %r is closed: its small model is wrong too often", route)
        self._kept.pop(route, None)

    def start_audit(self, audit: Coroutine[object, object, None]) -> None:
        """Run an audit beside the requests, unless too many run."""
        if len(self._audits) >= MAX_AUDITS:
            audit.close()
            return
        task = asyncio.ensure_future(audit)
        self._audits.add(task)
        task.add_done_callback(self._audits.discard)

    async def close(self) -> None:
        """End all audits."""
        audits = list(self._audits)
        for task in audits:
            task.cancel()
        await asyncio.gather(*audits, return_exceptions=True)


class Cascade:
    """One request of a cascade. `asks` makes the attempts at one of its targets."""

    def __init__(
        self,
        route: Route,
        small: TargetState,
        large: TargetState,
        request: GenerationRequest,
        call: CallContext,
        gates: Gates,
        asks: Asks,
        others: Sequence[TargetState] = (),
    ) -> None:
        """`others` are tried after the large model, where that fails."""
        self._route, self._small, self._large = route, small, large
        self._request, self._call, self._gates, self._asks = request, call, gates, asks
        self._large_fingerprint: str | None = None
        self._others = others

    async def batches(self) -> AsyncGenerator[Batch]:
        """The events of the answer that is taken."""
        gate = await self._gates.gate(self._route.gate_name)
        problem = self._problem(gate)
        if problem:
            self._call.warn("route", f"the large model answers for {self._route.name!r}: {problem}")
        elif (answer := await self._accepted(gate)) is not None:
            for batch in answer.batches:
                yield batch
            if random.random() < self._route.settings.audit:
                assert gate.calibration is not None
                self._gates.start_audit(self._audit(gate.calibration, answer.choice))
            return
        async with aclosing(self._large_attempts().batches()) as batches:
            async for batch in batches:
                yield batch

    def _large_attempts(self) -> Attempts:
        return self._asks.ask(self._large, self._request, self._call, others=self._others)

    def _problem(self, gate: Gate) -> str:
        """Why the small model is not asked."""
        settings, request = self._route.settings, self._request
        problem = problem_of(gate, settings, self._small.target, self._large.target)
        if problem:
            return problem
        assert gate.calibration is not None
        wishes = request.route or RouteWishes()
        risk = gate.calibration.certificate.risk
        if wishes.quality is not None and risk > 1 - wishes.quality + 1e-12:
            return f"its certificate allows {risk:.1%} wrong answers, the request {1 - wishes.quality:.1%}"
        is_several = isinstance(request, CompletionRequest) and len(request.prompts) > 1
        if is_several or choices_of(request) > 1 or request.scaling is not None:
            return "a request for several choices has no certified answer"
        return ""

    async def _accepted(self, gate: Gate) -> SmallAnswer | None:
        """The small model's answer where it is certified."""
        found = gate.calibration
        assert found is not None
        warnings = self._call.warnings
        told = len(warnings)
        answer = await self.small_answer()
        if answer is None:
            del warnings[told:]
            return None
        its_own = len(warnings) - told
        if not agrees(found.small, answer.identity):
            self._call.warn(
                "route",
                f"the certificate of {self._route.name!r} holds for other weights: calibrate it again",
            )
        elif answer.score is not None and answer.score >= found.certificate.threshold:
            return answer
        self._call.first_token_s = None  # nothing of it is sent, and what it warns of is not the client's
        del warnings[told : told + its_own]
        return None

    async def small_answer(self) -> SmallAnswer | None:
        """The whole answer of the small model; None where it failed."""
        wanted = TOP.get(self._route.settings.score)
        given = self._request.sampling.get("logprobs")
        request = self._request
        if wanted is not None and (given is None or given < wanted):
            request = replace(request, sampling={**request.sampling, "logprobs": wanted})
        attempts = self._asks.ask(self._small, request, self._call, max_attempts=1)
        try:
            return await self._collected(attempts, shows=given)
        except HeadraceError as error:
            LOG.info("the small model of %r failed: %s", self._route.name, error.message)
            return None
        finally:
            run = attempts.winner
            self._call.spent_nano_usd += 0 if run is None else run.cost_nano_usd or 0

    async def _collected(self, attempts: Attempts, shows: int | None) -> SmallAnswer:
        choice, kept = ChoiceResult(), list[Batch]()
        async with aclosing(attempts.batches()) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, OutputDelta | OutputFinished):
                        choice.add(event)
                kept.append([_shown(event, shows) for event in batch])
        fingerprint = None if attempts.winner is None else attempts.winner.fingerprint
        score = None
        if choice.finished is not None and choice.finished.reason in WHOLE:
            score = await self._score(choice)
        return SmallAnswer(kept, choice, score, identity(self._small.target, fingerprint))

    async def _score(self, choice: ChoiceResult) -> float | None:
        settings, runner = self._route.settings, self._gates.runner
        if settings.score != "verifier":
            return score_of(choice, settings.score)
        if runner is None:
            return None
        text = f"{question_of(self._request)}\n\n{choice.output.content}"
        own = self._call.nested("verify")
        [found] = await classify(runner, settings.verifier, [text], own, truncate=True)
        return found.scores[0]

    async def _audit(self, calibration: Calibration, choice: ChoiceResult) -> None:
        """Ask the large model, after all others, and count whether it says the same."""
        own = self._call.nested("audit", background=True)
        own.booking_id = own.work_id = f"{self._call.booking_id}-audit"
        request = replace(
            self._request, id=f"{self._request.id}-audit", priority=BATCH_PRIORITY, deadline_s=None
        )
        try:
            large = await self._large_answer(request, own)
            if large is None or large.finished is None or large.finished.reason not in WHOLE:
                return
            worse = self._route.worse
            if worse is None:
                is_wrong = not same(choice, large, request, self._route.settings.compare)
            elif (found := await worse(choice, large)) is None:
                return
            else:
                is_wrong = found
            await self._gates.count(self._route.gate_name, calibration, is_wrong)
        except HeadraceError as error:
            LOG.info("an audit of %r was left out: %s", self._route.name, error.message)

    async def _large_answer(self, request: GenerationRequest, call: CallContext) -> ChoiceResult | None:
        choice = ChoiceResult()
        asked = self._asks.ask(self._large, request, call, is_audit=True)
        async with aclosing(asked.batches()) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, OutputDelta | OutputFinished):
                        choice.add(event)
        self._large_fingerprint = None if asked.winner is None else asked.winner.fingerprint
        return choice

    async def scored(self, label: str | None) -> Scored:
        """The pair of a request, for calibration: against `label`, or what the large model says."""
        answer = await self.small_answer()
        if answer is None:
            raise InvalidRequest("the small model gave no answer", param="model")
        text = answer.choice.output.content
        large, fingerprint = label, None
        settings = self._route.settings
        if label is None:
            found = await self._large_answer(self._request, self._call)
            if found is None or found.finished is None or found.finished.reason not in WHOLE:
                raise InvalidRequest("the large model gave no whole answer", param="model")
            large, fingerprint = found.output.content, self._large_fingerprint
            is_wrong = not same(answer.choice, found, self._request, settings.compare)
        else:
            strict = "equal" if self._request.constraint is not None else settings.compare
            is_wrong = not same_text(text, label, strict)
        return Scored(
            small=text,
            large=large or "",
            score=answer.score,
            is_wrong=is_wrong,
            small_model=answer.identity,
            large_model=identity(self._large.target, fingerprint),
        )


class Asks:
    """Makes the attempts of a cascade. `parts` are what all attempts of a request have."""

    def __init__(self, route: Route, private: Private | None, parts: dict[str, object]) -> None:
        self._route, self._private, self._parts = route, private, parts

    def ask(
        self,
        state: TargetState,
        request: GenerationRequest,
        call: CallContext,
        *,
        max_attempts: int | None = None,
        is_audit: bool = False,
        others: Sequence[TargetState] = (),
    ) -> Attempts:
        """Attempts at one target, and at others where it fails."""
        private = self._private
        if private is not None and private.redacted is not None:
            private = replace(private, redacted=_with_sampling(private.redacted, request))
        parts = {**self._parts, "purse": None} if is_audit else self._parts
        return Attempts(
            *(self._route, [state, *others]),
            request=request,
            call=call,
            private=private,
            kind="audit" if is_audit else "first",
            max_attempts=1 if is_audit else max_attempts,
            **parts,  # type: ignore[arg-type]
        )


def _with_sampling(redacted: GenerationRequest, request: GenerationRequest) -> GenerationRequest:
    """The redacted request as the cascade asks it: with log-probabilities, which it keeps to itself."""
    return replace(redacted, sampling=request.sampling, id=request.id, priority=request.priority)


def _shown(event: InferenceEvent, asked: int | None) -> InferenceEvent:
    """An event without the log-probabilities that only the score needed."""
    if not isinstance(event, OutputDelta) or not event.logprobs or asked is not None:
        return event
    return replace(event, logprobs=())
