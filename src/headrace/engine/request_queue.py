"""Thread-safe queue of requests, cancellations, pauses and shutdown for an engine's loop."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from headrace.engine.client import EngineLimits
from headrace.engine.request import EngineEvent, EngineRequest, EventCallback, RequestFailed
from headrace.errors import DeadlineExceeded, EngineStopped, HeadraceError, InvalidRequest

DEADLINE_CHECK_S = 0.25

log = logging.getLogger("headrace.engine")


class Accepted(Protocol):
    """A validated request; `submitted_s` is a time of the loop's clock."""

    request_id: str
    request: EngineRequest
    sink: EventCallback
    submitted_s: float


AcceptedType = TypeVar("AcceptedType", bound=Accepted)


class CancelRequest(Struct, frozen=True):
    """End a request."""

    request_id: str


class PauseRequest(Struct, frozen=True):
    """Compute no more of a request, or continue it."""

    request_id: str
    paused: bool


class LoopCall(Struct, frozen=True):
    """Call a function on the loop's thread, between two steps. It must not raise."""

    function: Callable[[], None]


class RequestQueue(Generic[AcceptedType]):
    """The requests of one loop, from their acceptance to their end.

    Those that `receive` has returned are `active` until `end`; that dictionary belongs to the loop's thread.
    """

    def __init__(self, limits: EngineLimits, arrived: Callable[[], None] = lambda: None) -> None:
        """`arrived` is called, from any thread, when there is something to receive."""
        self._limits, self._arrived = limits, arrived
        self.active: dict[str, AcceptedType] = {}
        self._accepted: dict[str, AcceptedType] = {}  # not ended yet; this and all below guarded by _wake
        self._pending_choices = 0  # of the accepted
        self._unread: deque[AcceptedType | CancelRequest | PauseRequest | LoopCall] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._failure: HeadraceError | None = None
        self._numbers = itertools.count()

    # -- from any thread ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many items the loop has not received yet."""
        return len(self._unread)

    @property
    def pending_choices(self) -> int:
        """Choices of all requests that have not ended."""
        return self._pending_choices

    def adapters_in_use(self) -> set[str]:
        """The adapters that requests name which have not ended."""
        with self._wake:
            return {item.request.adapter for item in self._accepted.values()}

    def request_id(self, request: EngineRequest) -> str:
        """The request's own id, or a new one."""
        return request.request_id or f"r{next(self._numbers)}"

    def accept(self, item: AcceptedType) -> None:
        """Queue a request. EngineStopped, Overloaded, or InvalidRequest where its id is in use."""
        choices = item.request.params.n
        with self._wake:
            if self._failure is not None or self._stopping:
                raise self._failure or EngineStopped("the engine is shutting down: start it again")
            if item.request_id in self._accepted:
                raise InvalidRequest(f"request_id '{item.request_id}' is in use", param="request_id")
            self._limits.check_room(self._pending_choices, choices)
            self._pending_choices += choices
            self._accepted[item.request_id] = item
            self.put(item)

    def put(self, item: AcceptedType | CancelRequest | PauseRequest | LoopCall) -> None:
        """Queue an item for the loop."""
        with self._wake:
            self._unread.append(item)
            self._arrived()
            self._wake.notify()

    def close(self) -> None:
        """Refuse new requests, and stop the loop."""
        with self._wake:
            self._stopping = True
            self._arrived()
            self._wake.notify()

    # -- on the loop's thread -------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Generator[None]:
        """Around the loop: when it stops or fails, what has not ended fails with EngineStopped."""
        try:
            yield
        except BaseException as error:
            log.exception("the engine's loop failed")
            self._failure = EngineStopped(f"the engine failed: {type(error).__name__}; see the log")
        finally:
            failure = self._failure or EngineStopped("the engine was shut down")
            with self._wake:
                self._stopping = True
                left = list(self._accepted.values())
                self._accepted.clear()
            for item in left:
                send(item, [RequestFailed(failure)])

    def receive(self, *, idle: bool) -> list[AcceptedType | CancelRequest | PauseRequest | LoopCall] | None:
        """What has arrived, in order; an `idle` loop waits for it. None when it is time to stop."""
        with self._wake:
            if idle and not self._unread and not self._stopping:
                self._wake.wait(DEADLINE_CHECK_S if self.active else None)  # paused requests have deadlines
            arrived = list(self._unread)
            self._unread.clear()
            if self._stopping:
                return None
        return [item for item in arrived if self._is_due(item)]

    def _is_due(self, item: AcceptedType | CancelRequest | PauseRequest | LoopCall) -> bool:
        """Note a request as active. False for what is about one that has ended, whose id one that arrived
        with it may have."""
        if isinstance(item, LoopCall):
            return True
        if isinstance(item, CancelRequest | PauseRequest):
            return item.request_id in self.active
        self.active[item.request_id] = item
        return True

    def overdue(self, now_s: float) -> list[tuple[AcceptedType, DeadlineExceeded]]:
        """The active requests whose deadline has passed, each with its error."""
        late: list[tuple[AcceptedType, DeadlineExceeded]] = []
        for item in self.active.values():
            after = item.request.deadline_s
            if after is not None and now_s > item.submitted_s + after:
                message = f"the request's deadline of {after} s has passed: allow more time"
                late.append((item, DeadlineExceeded(message)))
        return late

    def end(self, item: AcceptedType) -> None:
        """Forget an active request: it is over."""
        del self.active[item.request_id]
        with self._wake:
            del self._accepted[item.request_id]
            self._pending_choices -= item.request.params.n


def send(item: Accepted, events: list[EngineEvent]) -> None:
    """Call the request's sink with its events."""
    try:
        item.sink(events)
    except Exception:
        # A sink belongs to one client; its failure must not end the others' requests.
        log.exception("a sink failed")
