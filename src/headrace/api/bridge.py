"""From the engine's thread to the event loop: events cross in one wake-up per step, for all requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headrace.engine.request import Event, Sink

Deliver = Callable[[list[Event]], None]


class Mailbox:
    """Collects what sinks receive and wakes one event loop once for all of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: list[tuple[Deliver, list[Event]]] = []

    def sink(self, deliver: Deliver) -> Sink:
        """A sink for the engine; `deliver` runs on the loop, with the events in order."""

        def post(events: list[Event]) -> None:
            with self._lock:
                self._pending.append((deliver, events))
                if len(self._pending) > 1:
                    return  # a wake-up is already on its way
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop has closed: nobody is left to read
                self._pending.clear()

        return post

    def _flush(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        for deliver, events in pending:
            deliver(events)
