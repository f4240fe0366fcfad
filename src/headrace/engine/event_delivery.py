"""What a step's tokens mean for their requests: events to send, and choices and requests that end."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.active_requests import ActiveRequests
from headrace.engine.request import EngineEvent, RequestFailed
from headrace.engine.request_queue import send
from headrace.engine.request_state import RequestState
from headrace.engine.sampling.sample_slot import SampleSlot


def deliver(active: ActiveRequests, slots: Iterable[SampleSlot], now_s: float) -> None:
    """Send the events of a step that ended at `now_s`, and release what has ended."""
    events: dict[int, tuple[RequestState, list[EngineEvent]]] = {}
    for slot in slots:
        if slot.put_off:
            continue
        state = slot.choice.request_state
        _, ready = events.setdefault(id(state), (state, []))
        if state.first_token_s is None:
            state.first_token_s = now_s
        ready += slot.merged()
        if slot.error is not None:
            ready.append(RequestFailed(slot.error))
        if slot.choice.done:
            active.release(slot.choice)
    for state, ready in events.values():
        _deliver_request(active, state, ready, now_s)


def _deliver_request(
    active: ActiveRequests, state: RequestState, ready: list[EngineEvent], now_s: float
) -> None:
    sampled, ready = len(ready), state.apply_scaling(ready)
    failed = next((event for event in ready if isinstance(event, RequestFailed)), None)
    if failed is not None:
        active.end(state, ready[: ready.index(failed) + 1])
    elif state.done:
        active.end(state, [*ready, state.finished(now_s)])
    else:
        if len(ready) > sampled:  # scaling has stopped choices
            for choice in state.choices:
                if choice.done:
                    active.release(choice)
        send(state, ready)
