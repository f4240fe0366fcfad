"""A request in the server process that has not had its terminal event, and delivery of its events."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from msgspec import field
from msgspec.structs import replace

from headrace.engine.ranked_request import RankedRequest
from headrace.engine.request import (
    ChoiceFinished,
    EngineEvent,
    EngineRequest,
    EventCallback,
    RequestFailed,
    RequestFinished,
    RequestHandle,
    Timing,
    Usage,
)
from headrace.engine.submissions import accept, refuse
from headrace.errors import HeadraceError, InvalidRequest
from headrace.workers.delivered import DeliveredOutput

LOG = logging.getLogger("headrace.workers")
MIN_DEADLINE_S = 1e-6
"""Of a request whose deadline passes while it is sent to the next worker, which then fails it."""


class InFlightRequest(RankedRequest, eq=False):
    """A request without a terminal event so far. `accepted` is set while its submission is pending, and gets
    the `handle`.

    Times are on the monotonic clock: `began_s` is when it came, `submitted_s` when its present run began, and
    `first_token_s` counts from the former. `advanced`: the present worker has given something new of it.
    `deaths` are the workers that ended before they had.
    """

    sink: EventCallback
    began_s: float
    submitted_s: float
    handle: RequestHandle
    accepted: Future[RequestHandle] | None
    output: DeliveredOutput = field(default_factory=DeliveredOutput)
    first_token_s: float | None = None
    advanced: bool = False
    cancelled: bool = False
    paused: bool = False
    deaths: int = 0
    rank: tuple[float, int] = (0.0, 0)  # about as in the worker's queue

    def take(self, events: list[EngineEvent]) -> list[EngineEvent]:
        """What of a run's events the reader does not have, noted as delivered. Diverged where the run gives
        other tokens than one before it."""
        new = self.output.take(events)
        if new and self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.began_s
        if new and self.submitted_s > self.began_s and isinstance(done := new[-1], RequestFinished):
            new[-1] = self._over_all_runs(done)
        return new

    def _over_all_runs(self, done: RequestFinished) -> RequestFinished:
        """The end of a later run, with times from when the request came."""
        before_s = self.submitted_s - self.began_s
        first_s = self.first_token_s
        if first_s is None or first_s >= before_s:  # of this run, which counts no compiling of a grammar
            first_s = done.timing.first_token_s + before_s
        timing = replace(
            done.timing,
            first_token_s=first_s,
            total_s=done.timing.total_s + before_s,
        )
        trace = tuple(
            replace(share, start_s=share.start_s + before_s, end_s=share.end_s + before_s)
            for share in done.trace
        )
        usage = done.usage
        if not self.request.prediction:  # those of `next_run` are nobody's concern
            usage = replace(usage, accepted_prediction_tokens=0, rejected_prediction_tokens=0)
        return replace(done, usage=usage, timing=timing, trace=trace)

    def is_late(self, now_s: float) -> bool:
        """Whether its deadline has passed."""
        deadline_s = self.request.deadline_s
        return deadline_s is not None and now_s - self.began_s >= deadline_s

    def next_run(self) -> EngineRequest:
        """What to send to a new worker.

        The tokens that are known are drafts of the next run, so that it catches up at the speed of a prompt.
        """
        now_s = time.monotonic()
        self.submitted_s, self.advanced = now_s, False
        self.output.begin_again()
        request = self.request
        if request.deadline_s is not None:
            left_s = max(request.deadline_s - (now_s - self.began_s), MIN_DEADLINE_S)
            request = replace(request, deadline_s=left_s)
        if request.params.n == 1 and not request.prediction:
            request = replace(request, prediction=self.output.only_tokens)
        return request

    def accept(self) -> bool:
        """The submission has succeeded; False where the caller has cancelled it before."""
        accepted, self.accepted = self.accepted, None
        return accepted is None or accept(accepted, self.handle)

    def refuse(self, error: HeadraceError) -> None:
        """The submission has failed."""
        accepted, self.accepted = self.accepted, None
        if accepted is not None:
            refuse(accepted, error)


def repeatable(request: EngineRequest, ids: Iterator[int]) -> EngineRequest:
    """The request with an id and a seed, so that another process gives the same tokens. InvalidRequest where
    it has a function, which no other process can call."""
    if request.scaling is not None and request.scaling.local:
        raise InvalidRequest("a function for vote or best_by cannot be called in a worker process: name one")
    params = request.params
    if params.seed is None:
        params = replace(params, seed=secrets.randbits(63))
    return replace(request, params=params, request_id=request.request_id or f"r{next(ids)}")


def computing(items: Iterable[InFlightRequest]) -> int:
    """Choices that are to be computed, as far as the worker is not told to wait."""
    return sum(item.request.params.n for item in items if not item.paused and item.accepted is None)


def compiling(items: Iterable[InFlightRequest]) -> int:
    """Choices whose grammar is being compiled."""
    return sum(item.request.params.n for item in items if item.accepted is not None)


def cancelled(item: InFlightRequest) -> list[EngineEvent]:
    """The events of a request that was cancelled while no worker computed it."""
    params, waited_s = item.request.params, time.monotonic() - item.began_s
    ends: list[EngineEvent] = [
        ChoiceFinished(choice, "cancelled") for choice in range(params.n) if choice not in item.output.ended
    ]
    usage = Usage(len(item.request.prompt), item.output.tokens, 0)
    first_s = item.first_token_s or waited_s
    return [*ends, RequestFinished(usage, Timing(first_s, first_s, waited_s), params.seed or 0)]


def send(item: InFlightRequest, events: list[EngineEvent]) -> None:
    """Deliver events; if the submission is still pending, deliver its acceptance or rejection first."""
    if item.accepted is not None and isinstance(last := events[-1], RequestFailed):
        item.refuse(last.error)  # the caller has no handle yet
        return
    if not item.accept():
        return
    try:
        item.sink(events)
    except Exception:
        # A sink belongs to one client; its failure must not affect other requests.
        LOG.exception("a sink failed")
