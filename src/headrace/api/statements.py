"""The engine of SQL that a server has, and threads that wait for its statements."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from msgspec import Struct

from headrace.config.datasets import read_datasets, read_sql
from headrace.config.search_settings import read_search
from headrace.config.settings import Settings
from headrace.data.engine import DataEngine
from headrace.data.job import SqlAnswer
from headrace.errors import NotEnabled, Overloaded
from headrace.inference.accounts import Account
from headrace.inference.model_runner import ModelRunner
from headrace.inference.price_source import RemoteBounds
from headrace.isolation.child import WorkStop
from headrace.storage.sql_memo import memo_file

RUNNING = 8
WAITING = 24
T = TypeVar("T")


class Places:
    """Statements that run, up to RUNNING at the same time. One that waits for models, which may take an hour,
    gives up its place meanwhile; up to WAITING may wait, so that there is always a thread for others."""

    def __init__(self) -> None:
        self._running = threading.BoundedSemaphore(RUNNING)
        self._waiting = threading.BoundedSemaphore(WAITING)

    @contextmanager
    def running(self) -> Generator[None]:
        """A statement runs, once it has a place."""
        with self._running:
            yield

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Within `running`: it waits for models. Overloaded where too many do."""
        if not self._waiting.acquire(blocking=False):
            raise Overloaded(
                f"{WAITING} statements wait for models already: send it again later", reason="sql"
            )
        try:
            self._running.release()
            try:
                yield
            finally:
                self._running.acquire()
        finally:
            self._waiting.release()


class ServedModels(Struct, frozen=True):
    """The models of a server for one statement. See `Models`."""

    runner: ModelRunner
    account: Account
    loop: asyncio.AbstractEventLoop
    places: Places
    remote: RemoteBounds | None = None

    def waiting(self) -> AbstractContextManager[None]:
        """See `Models.waiting`."""
        return self.places.waiting()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """See `Models.submit`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


class Statements:
    """Made before the event loop runs; then it belongs to the loop. The engine is made with the first
    statement, and anew after settings of it have changed."""

    def __init__(self, settings: Settings) -> None:
        """UsageError where settings of data are wrong."""
        self._settings = checked_settings(settings)
        self.places = Places()
        self._threads = ThreadPoolExecutor(RUNNING + WAITING, thread_name_prefix="headrace-sql")
        # Its own: who waits for sources that hang keeps no statement waiting.
        self._source_threads = ThreadPoolExecutor(1, thread_name_prefix="headrace-sources")
        self._lock = threading.Lock()
        self._engine: DataEngine | None = None

    def configure(self, settings: Settings) -> None:
        """Take over settings. Statements that run end as they began."""
        with self._lock:
            before, self._settings = self._settings, checked_settings(settings)
            if (before.datasets, before.sql) != (settings.datasets, settings.sql):
                if self._engine is not None:
                    self._engine.retire()
                self._engine = None

    async def engine(self) -> DataEngine:
        """What runs SQL over the settings' datasets. ExtraMissing without the extra, NotEnabled without
        datasets."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._made)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that waits for sources in a thread, one after another."""
        return await asyncio.get_running_loop().run_in_executor(self._source_threads, work)

    async def run(
        self, work: Callable[[DataEngine, WorkStop], SqlAnswer], *, needs_datasets: bool = True
    ) -> SqlAnswer:
        """Run `work` that waits for a statement in a thread; where this is cancelled, the statement ends."""
        stop = WorkStop()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: self._in_place(work, stop, needs_datasets)
            )
        except asyncio.CancelledError:
            stop.stop()
            raise

    def _in_place(
        self, work: Callable[[DataEngine, WorkStop], SqlAnswer], stop: WorkStop, needs_datasets: bool
    ) -> SqlAnswer:
        with self.places.running():
            return work(self._made(needs_datasets), stop)

    def close(self) -> None:
        """End the engine and what it runs."""
        for threads in (self._threads, self._source_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            if self._engine is not None:
                self._engine.close()

    def _made(self, needs_datasets: bool = True) -> DataEngine:
        with self._lock:
            settings = self._settings
            if needs_datasets and not settings.datasets:
                raise NotEnabled("there are no datasets: name them in [datasets] of headrace.toml")
            if self._engine is None:
                memo = memo_file(settings.store_file)
                self._engine = DataEngine(settings.datasets, settings.sql, settings.cache_folder, memo=memo)
            return self._engine


def checked_settings(settings: Settings) -> Settings:
    """`settings`; UsageError where those of data are wrong."""
    read_datasets(settings.datasets)
    read_sql(settings.sql)
    read_search(settings.search)
    return settings
