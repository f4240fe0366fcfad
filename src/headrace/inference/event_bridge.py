"""From an engine's thread to the event loop: events cross in one wake-up per step, for all requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headrace.engine.request import EngineEvent, EventCallback

Deliver = Callable[[list[EngineEvent]], None]

MAX_WAITING_BATCHES = 2
"""Of one request, that wait for the loop: an engine that brings more is held back. One is being delivered
while the next is computed; beyond that those who came first would only run further ahead of those who still
wait to be read."""
LOOK_S = 0.1


class EventBridge:
    """Collects what sinks receive and wakes one event loop once for all of it.

    What waits of one request is delivered in a row, so that it is written as one. A sink blocks while too
    much of its request waits, unless the loop itself calls it or runs no more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._is_closed = False
        self._thread = threading.get_ident()
        self._changed = threading.Condition()
        self._pending: dict[Deliver, list[list[EngineEvent]]] = {}

    def sink(self, deliver: Deliver) -> EventCallback:
        """A sink for the engine; `deliver` runs on the loop, with the events in order."""

        def post(events: list[EngineEvent]) -> None:
            with self._changed:
                while len(self._pending.get(deliver, ())) >= MAX_WAITING_BATCHES and self._runs_elsewhere():
                    self._changed.wait(LOOK_S)
                first = not self._pending
                self._pending.setdefault(deliver, []).append(events)
            if not first:
                return  # a wake-up is already on its way
            try:
                self.loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop has closed: nobody is left to read
                self._pending.clear()

        return post

    def close(self) -> None:
        """Hold no sink back any more: the loop may be waiting for the engine to stop."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _runs_elsewhere(self) -> bool:
        return not self._is_closed and threading.get_ident() != self._thread and self.loop.is_running()

    def _flush(self) -> None:
        with self._changed:
            pending, self._pending = self._pending, {}
            self._changed.notify_all()
        for deliver, batches in pending.items():
            for events in batches:
                deliver(events)
