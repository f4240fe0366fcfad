"""A request in the server process that has not had its terminal event, and delivery of its events."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future

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
from headrace.errors import HeadraceError

LOG = logging.getLogger("headrace.workers")


class InFlightRequest(RankedRequest, eq=False):
    """A request without a terminal event so far. `accepted` is set while its submission is pending, and gets
    the `handle`."""

    sink: EventCallback
    submitted_s: float
    handle: RequestHandle
    accepted: Future[RequestHandle] | None
    answered: bool = False
    cancelled: bool = False
    paused: bool = False
    deaths: int = 0
    rank: tuple[float, int] = (0.0, 0)  # about as in the worker's queue

    def accept(self) -> bool:
        """The submission has succeeded; False where the caller has cancelled it before."""
        accepted, self.accepted = self.accepted, None
        return accepted is None or accept(accepted, self.handle)

    def refuse(self, error: HeadraceError) -> None:
        """The submission has failed."""
        accepted, self.accepted = self.accepted, None
        if accepted is not None:
            refuse(accepted, error)


def computing(items: Iterable[InFlightRequest]) -> int:
    """Choices that are to be computed, as far as the worker is not told to wait."""
    return sum(item.request.params.n for item in items if not item.paused and item.accepted is None)


def compiling(items: Iterable[InFlightRequest]) -> int:
    """Choices whose grammar is being compiled."""
    return sum(item.request.params.n for item in items if item.accepted is not None)


def in_time(item: InFlightRequest) -> EngineRequest | None:
    """The request with its remaining deadline; None if the deadline has passed."""
    deadline_s = item.request.deadline_s
    if deadline_s is None:
        return item.request
    now_s = time.monotonic()
    left_s = deadline_s - (now_s - item.submitted_s)
    item.submitted_s = now_s
    return replace(item.request, deadline_s=left_s) if left_s > 0 else None


def cancelled(item: InFlightRequest) -> list[EngineEvent]:
    """The events of a request that was cancelled before anything was computed."""
    params, waited_s = item.request.params, time.monotonic() - item.submitted_s
    ends: list[EngineEvent] = [ChoiceFinished(choice, "cancelled") for choice in range(params.n)]
    usage = Usage(len(item.request.prompt), 0, 0)
    return [*ends, RequestFinished(usage, Timing(waited_s, waited_s, waited_s), params.seed or 0)]


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
