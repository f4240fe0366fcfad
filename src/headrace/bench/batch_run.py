"""Run requests concurrently and record when the tokens of each arrive."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from headrace.engine.client import EngineClient
from headrace.engine.request import Delta, EngineEvent, EngineRequest, RequestFailed, RequestFinished


class Arrival(Struct, frozen=True):
    """New tokens of request `index`; the time is of the monotonic clock."""

    index: int
    at_s: float
    tokens: tuple[int, ...]


def run_together(engine: EngineClient, requests: Sequence[EngineRequest]) -> Iterator[Arrival]:
    """Submit all requests and yield arrivals until all have ended. Raises the error of a failed request."""
    arrived: queue.SimpleQueue[tuple[int, float, list[EngineEvent]]] = queue.SimpleQueue()
    for index, request in enumerate(requests):

        def sink(events: list[EngineEvent], index: int = index) -> None:
            arrived.put((index, time.monotonic(), events))

        engine.submit(request, sink)
    open_requests = len(requests)
    while open_requests:
        index, at_s, events = arrived.get()
        for event in events:
            if isinstance(event, RequestFailed):
                raise event.error
            if isinstance(event, Delta):
                yield Arrival(index, at_s, event.tokens)
            open_requests -= isinstance(event, RequestFinished)
