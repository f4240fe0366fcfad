"""What the loop does between two steps: requests, cancellations and pauses that arrived, and deadlines."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.active_requests import ActiveRequests
from headrace.engine.request import ChoiceFinished, EngineEvent, RequestFailed
from headrace.engine.request_queue import CancelRequest, PauseRequest, RequestQueue
from headrace.engine.request_state import RequestState
from headrace.engine.scheduler.scheduler import Scheduler


class Admission:
    """Applies what has arrived in the queue. For the loop's thread alone."""

    def __init__(
        self,
        queue: RequestQueue[RequestState],
        active: ActiveRequests,
        scheduler: Scheduler,
        clock: Callable[[], float],
    ) -> None:
        self._queue, self._active, self._scheduler, self._clock = queue, active, scheduler, clock

    def receive(self, *, idle: bool) -> bool:
        """Apply what has arrived, in order; an `idle` loop waits for it. False when the loop must stop."""
        arrived = self._queue.receive(idle=idle)
        if arrived is None:
            return False
        for item in arrived:
            if isinstance(item, CancelRequest):
                self.cancel(item.request_id)
            elif isinstance(item, PauseRequest):
                self._pause(item)
            else:
                self._active.add(item)
        self._check_deadlines()
        return True

    def cancel(self, request_id: str) -> None:
        """End every choice that has not ended; nothing where the request has."""
        state = self._active.find(request_id)
        if state is None:
            return
        events: list[EngineEvent] = [choice.end("cancelled") for choice in state.choices if not choice.done]
        if state.beams is not None:
            events += [ChoiceFinished(index, "cancelled") for index in range(state.request.params.n)]
        self._active.end(state, [*events, state.finished(self._clock())])

    def _pause(self, item: PauseRequest) -> None:
        state = self._active.find(item.request_id)
        for choice in state.choices if state is not None else ():
            if item.paused:
                self._scheduler.pause(choice.sequence)
            else:
                self._scheduler.resume(choice.sequence)

    def _check_deadlines(self) -> None:
        now_s = self._clock()
        for state, error in self._queue.overdue(now_s):
            events = state.expired(error)
            if not isinstance(events[-1], RequestFailed):
                events.append(state.finished(now_s))
            self._active.end(state, events)
