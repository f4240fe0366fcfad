"""What the loop does between two steps: requests, cancellations and pauses that arrived, and deadlines."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.active_requests import ActiveRequests
from headrace.engine.pacing import Pacing
from headrace.engine.request import ChoiceFinished, EngineEvent, RequestFailed
from headrace.engine.request_queue import CancelRequest, LoopCall, PauseRequest, RequestQueue, send
from headrace.engine.request_state import RequestState
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.step_prediction import StepPredictor
from headrace.errors import TargetUnreachable


class Admission:
    """Applies what has arrived in the queue. For the loop's thread alone."""

    def __init__(
        self,
        queue: RequestQueue[RequestState],
        active: ActiveRequests,
        scheduler: Scheduler,
        clock: Callable[[], float],
        pacing: Pacing,
        predictor: StepPredictor,
        max_batch_tokens: int,
    ) -> None:
        self._pacing, self._predictor, self._max_batch_tokens = pacing, predictor, max_batch_tokens
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
            elif isinstance(item, LoopCall):
                item.function()
            else:
                self._admit(item)
        self._check_deadlines()
        return True

    def cancel(self, request_id: str) -> None:
        """End every choice that has not ended; nothing where the request has."""
        state = self._active.find(request_id)
        if state is None:
            return
        events: list[EngineEvent] = [choice.end("cancelled") for choice in state.choices if not choice.done]
        if state.group is not None:
            events += [ChoiceFinished(index, "cancelled") for index in range(state.request.params.n)]
        self._active.end(state, [*events, state.finished(self._clock())])

    def _admit(self, state: RequestState) -> None:
        """Queue a request, or refuse it where it would miss its target and that is the policy; of one that
        only asks for a prediction nothing is queued."""
        if state.request.predicts:
            self._queue.end(state)
            send(state, [self._predictor.finished(state)])
            return
        options, sequence = self._pacing.options, state.choices[0].sequence if state.choices else None
        target_s = None if sequence is None else options.target_s(sequence.ttft_s)
        if target_s is not None and sequence is not None:
            scheduler = self._scheduler
            running, waiting = scheduler.running, scheduler.waiting
            late_s = self._pacing.late_s(sequence, running, waiting, self._max_batch_tokens)
            is_probe = not running and not waiting and self._pacing.is_stale(self._clock())
            if late_s and options.refuses(target_s) and not is_probe:
                self._queue.end(state)
                send(state, [RequestFailed(_unreachable(late_s, target_s))])
                return
            state.late_s, state.target_s = late_s, target_s if late_s else 0.0
        self._active.add(state)

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


def _unreachable(late_s: float, target_s: float) -> TargetUnreachable:
    return TargetUnreachable(
        f"the first token is predicted in {1000 * late_s:,.1f} ms, the target is {1000 * target_s:,g} ms: "
        "try again later, or ask for service_tier flex",
        retry_after_s=max(late_s - target_s, 0.1),
        reason="slo",
    )
