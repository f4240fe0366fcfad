"""Handlers for callers that are not asynchronous: an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.errors import EngineStopped
from headrace.inference.events import InferenceEvent
from headrace.inference.handler import OpenStream

T = TypeVar("T")


class LoopThread:
    """An event loop that runs until it is closed, for good. The thread starts with the first use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may call `close` within it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result, from another thread. EngineStopped once this is closed.

        What interrupts the wait, such as Ctrl-C, cancels the coroutine.
        """
        future = self.submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin a coroutine; cancelling the future cancels it. EngineStopped once this is closed."""
        with self._lock:  # what is begun here is among the tasks that `close` cancels
            if self._is_closed:
                work.close()
                raise _closed()
            return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def close(self) -> None:
        """Cancel what runs on the loop, stop it and wait for its thread, unless this is that thread."""
        with self._lock:
            loop, thread, closed = self._loop, self._thread, self._is_closed
            self._is_closed = True
        if loop is None or thread is None or closed:
            return
        asyncio.run_coroutine_threadsafe(_stop(), loop)
        if thread is not threading.current_thread():  # where the garbage collector may call this
            thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="headrace-llm", daemon=True
            )
            self._thread.start()
        return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _stop() -> None:
    """Cancel all other tasks of this loop, wait for them and stop the loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    loop.stop()


def _closed() -> EngineStopped:
    return EngineStopped("the model was closed before this request had ended: load it again")


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
        start: Callable[[], Coroutine[Any, Any, OpenStream]],
        new_reader: Callable[[OpenStream], StreamReader[T]],
        owner: object = None,
    ) -> None:
        self._owner = owner
        self._arrived: queue.SimpleQueue[list[T] | BaseException | None] = queue.SimpleQueue()
        self._items: list[T] = []
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._task = thread.run(_started(start, new_reader, self._arrived))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._items:
            if self._task is None:
                raise StopIteration
            arrived = self._arrived.get()
            if self._is_closed:  # meanwhile, by another thread
                raise StopIteration
            if arrived is None or isinstance(arrived, BaseException):
                self._task = None
                if arrived is not None:
                    raise arrived
            else:
                self._items = arrived[::-1]
        return self._items.pop()

    def close(self) -> None:
        """Cancel what has not ended; no further item comes."""
        self._items, self._is_closed = [], True
        task, self._task = self._task, None
        if task is not None:
            with suppress(RuntimeError):  # the loop has closed: the request has ended with it
                task.get_loop().call_soon_threadsafe(task.cancel)

    def __del__(self) -> None:
        self.close()


async def _started(
    start: Callable[[], Coroutine[Any, Any, OpenStream]],
    new_reader: Callable[[OpenStream], StreamReader[T]],
    arrived: queue.SimpleQueue[list[T] | BaseException | None],
) -> asyncio.Task[None]:
    stream = await start()
    task = asyncio.create_task(_pump(stream, new_reader(stream), arrived))
    # Here, as a task that is cancelled before it begins runs nothing of its own.
    task.add_done_callback(lambda task: arrived.put(_closed()) if task.cancelled() else None)
    return task


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
