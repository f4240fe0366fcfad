"""Handlers for callers that are not asynchronous: an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.inference.events import InferenceEvent
from headrace.inference.handler import OpenStream

T = TypeVar("T")


class LoopThread:
    """An event loop that runs until it is closed. The thread starts with the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="headrace-llm", daemon=True)
                self._thread.start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """Cancel what runs on the loop, stop it and wait for its thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop and wait for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class StreamReader(Protocol[T]):
    """Turns the events of one stream into items."""

    def read(self, events: Sequence[InferenceEvent]) -> list[T]:
        """The items of a batch of events."""
        ...

    def last(self) -> T:
        """The item at the end of the stream."""
        ...


class BlockingStream(Generic[T]):
    """The stream of a request as an iterator that blocks. Raises what refuses the request when it is made.

    Closing it, or dropping it before its end, cancels the request. `owner` is kept alive until then.
    """

    def __init__(
        self,
        thread: LoopThread,
        opened: Coroutine[Any, Any, OpenStream],
        new_reader: Callable[[OpenStream], StreamReader[T]],
        owner: object = None,
    ) -> None:
        self._owner = owner
        self._arrived: queue.SimpleQueue[list[T] | BaseException | None] = queue.SimpleQueue()
        self._items: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self._task = thread.run(_started(opened, new_reader, self._arrived))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._items:
            if self._task is None:
                raise StopIteration
            arrived = self._arrived.get()
            if arrived is None or isinstance(arrived, BaseException):
                self._task = None
                if arrived is not None:
                    raise arrived
            else:
                self._items = arrived[::-1]
        return self._items.pop()

    def close(self) -> None:
        """Cancel what has not ended; no further item comes."""
        self._items = []
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)

    def __del__(self) -> None:
        self.close()


async def _started(
    opened: Coroutine[Any, Any, OpenStream],
    new_reader: Callable[[OpenStream], StreamReader[T]],
    arrived: queue.SimpleQueue[list[T] | BaseException | None],
) -> asyncio.Task[None]:
    stream = await opened
    return asyncio.create_task(_pump(stream, new_reader(stream), arrived))


async def _pump(
    stream: OpenStream, reader: StreamReader[T], arrived: queue.SimpleQueue[list[T] | BaseException | None]
) -> None:
    """Pass a stream on, until it ends or this task is cancelled."""
    try:
        async for batch in stream:
            arrived.put(reader.read(batch))
        arrived.put([reader.last()])
        arrived.put(None)
    except Exception as error:
        arrived.put(error)
    finally:
        await stream.aclose()
