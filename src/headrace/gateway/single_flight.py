"""Equal requests that are there at the same time are computed once. Each has its own stream of it.

What is computed belongs to no single one of them: it ends when the last has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    PromptFinished,
    PromptScored,
)
from headrace.inference.handler import Batch, EventBatches

AHEAD = 32
"""Batches that are read ahead of the fastest reader: beyond them the handler behind is slowed down."""
MAX_FLIGHT_BYTES = 4 << 20
"""Of what has been computed, about. A longer one takes no more readers, and its batches are dropped when all
of those have them."""
_EVENT_BYTES, _TOKEN_BYTES = 200, 100


class Flight:
    """One computation and its readers. Lives on the event loop. `call` is its own: no reader's."""

    def __init__(self, batches: EventBatches, call: CallContext, ended: Callable[[Flight], None]) -> None:
        self.call = call
        self.readers = 0
        self.is_complete = False
        """It came to its end, and nothing of it was cut."""
        self.was_cut = False
        self.bytes = 0
        self.batches: list[Batch] = []
        """All batches from `dropped` on."""
        self.dropped = 0
        self._source, self._ended = batches, ended
        self._places: dict[object, int] = {}
        self._error: BaseException | None = None
        self._is_over = False
        self._news: asyncio.Future[None] | None = None
        self._demand = asyncio.Event()
        self._task = asyncio.ensure_future(self._pump())

    @property
    def is_open(self) -> bool:
        """Whether another reader can still have all of it."""
        return self._error is None and not self.was_cut and not self.dropped and not self._task.cancelled()

    async def read(self) -> AsyncGenerator[Batch]:
        """All batches from the first on. Raises what the computation raises."""
        reader = object()
        self._places[reader] = 0
        self.readers += 1
        try:
            while True:
                place = self._places[reader]
                if place < self.dropped + len(self.batches):
                    batch = self.batches[place - self.dropped]
                    self._places[reader] = place + 1
                    self._demand.set()
                    yield batch
                elif self._error is not None:
                    raise self._error
                elif self._is_over:
                    return
                else:
                    await self._next()
        finally:
            del self._places[reader]
            self.readers -= 1
            self._demand.set()
            if not self.readers:
                await self.close()

    async def _next(self) -> None:
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set_result(None)

    async def _pump(self) -> None:
        try:
            async for batch in self._source:
                self.bytes += sum(map(size_of, batch))
                self.batches.append(batch)
                self._tell()
                while self._is_far_ahead():
                    self._demand.clear()
                    self._drop_read()
                    if self._is_far_ahead():
                        await self._demand.wait()
                self._drop_read()
            self.is_complete = not self.was_cut
        except asyncio.CancelledError:
            self.was_cut = True
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._is_over = True
            try:
                await self._source.aclose()
            finally:
                self._ended(self)
                self._tell()

    def _is_far_ahead(self) -> bool:
        places = self._places.values()
        # What is kept for slow readers is bounded: from there on they set the pace.
        first = (max if self.bytes <= MAX_FLIGHT_BYTES else min)(places, default=0)
        return self.dropped + len(self.batches) - first >= AHEAD

    def _drop_read(self) -> None:
        """Where it is long, forget the batches that every reader has."""
        if self.bytes > MAX_FLIGHT_BYTES and self._places:
            read = min(self._places.values()) - self.dropped
            del self.batches[:read]
            self.dropped += read

    async def close(self) -> None:
        """Stop computing; a second call changes nothing."""
        if not self._task.done():
            self.was_cut = True
            self._task.cancel()
            await asyncio.wait((self._task,))


def size_of(event: InferenceEvent) -> int:
    """About how many bytes of memory an event takes."""
    if isinstance(event, OutputDelta):
        return _EVENT_BYTES + _TOKEN_BYTES * sum(1 + len(one.top) for one in event.logprobs)
    if isinstance(event, PromptScored):
        return _TOKEN_BYTES * sum(1 + len(one.top) for one in event.tokens)
    return _EVENT_BYTES


def is_whole(batches: Sequence[Batch]) -> bool:
    """Whether every choice has ended by itself: none was cancelled, stopped by a guard or given up."""
    events = [event for batch in batches for event in batch]
    ends = [event for event in events if isinstance(event, OutputFinished)]
    reasons = {event.reason for event in ends} | {event.text_reason for event in ends}
    return (
        bool(ends)
        and reasons <= {"stop", "length", "tool_calls"}
        and any(isinstance(event, PromptFinished) for event in events)
    )
