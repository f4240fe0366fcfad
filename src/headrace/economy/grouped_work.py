"""Work on a database in a thread of its own, in order; what waits at the same time shares one transaction."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from headrace.errors import HeadraceError, StoreBusy, StoreError
from headrace.storage.sql_store import SqlStore

T = TypeVar("T")
PATIENCE_S = 20.0
"""How long it waits for a store that another process has locked, before it gives up."""
MAX_GROUP = 64
"""Other processes wait for a transaction, so it has an end."""


class _Undone(Exception):
    """One of a group has failed half-way."""


class _Work(Struct, eq=False):
    do: Callable[[], Any]
    future: asyncio.Future[Any] | None
    value: Any = None
    error: BaseException | None = None


class GroupedWork:
    """Beginning, ending and writing a transaction costs more than what is done in most. Where one of a group
    fails, unless it is refused (a HeadraceError), nothing of the group is kept, and each is done again by
    itself."""

    def __init__(self, database: SqlStore, name: str) -> None:
        self._database, self._name = database, name
        self._waiting: deque[_Work] = deque()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: the last one
        self._waking: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, do: Callable[[], T]) -> asyncio.Future[T]:
        """Do it; the future belongs to the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Work(do, future))
        if self._waking is not loop:  # once for all of this turn of the loop: to wake a thread costs much
            self._waking = loop
            loop.call_soon(self._wake)
        return future

    def submit(self, do: Callable[[], object]) -> None:
        """Do it; what comes of it matters to no one."""
        self._waiting.append(_Work(do, None))
        self._wake()

    def close(self) -> None:
        """Finish what was begun."""
        if self._waiting:
            self._wake()
        if self._thread is not None:
            self._wakes.put(False)
            self._thread.join()
            self._thread = None

    def _wake(self) -> None:
        self._waking = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._wakes.put(True)

    def _run(self) -> None:
        is_open = True
        while is_open:
            is_open = self._wakes.get()
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]
                self._do(group)
                _tell(group)

    def _do(self, group: Sequence[_Work]) -> None:
        if len(group) > 1:
            try:
                with self._database.transaction():
                    for work in group:
                        _attempt(work)
                        if work.error is not None and not isinstance(work.error, HeadraceError):
                            raise _Undone
                return
            except (StoreError, _Undone):
                pass
        for work in group:
            try:
                _patiently(work)
            except StoreError as error:
                work.error = error


def _attempt(work: _Work) -> None:
    """Do it; raises StoreError, other errors are what came of it."""
    work.value = work.error = None
    try:
        work.value = work.do()
    except StoreError:
        raise
    except Exception as error:
        work.error = error


def _patiently(work: _Work) -> None:
    """Do it, again while another process has the store locked; StoreBusy when that takes too long."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _attempt(work)
        except StoreBusy:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _tell(group: Sequence[_Work]) -> None:
    """Resolve the futures, with one call for those of a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Work]] = {}
    for work in group:
        if work.future is not None:
            by_loop.setdefault(work.future.get_loop(), []).append(work)
    for loop, works in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, works)
        except RuntimeError:  # the loop is closed: who waited is gone
            continue


def _resolve(works: Sequence[_Work]) -> None:
    for work in works:
        if work.future is None or work.future.done():
            continue
        if work.error is None:
            work.future.set_result(work.value)
        else:
            work.future.set_exception(work.error)
