"""The engine of SQL that a server has, and threads that wait for its statements."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import Struct

from headrace.config.datasets import read_datasets, read_sql
from headrace.config.settings import Settings
from headrace.data.engine import DataEngine
from headrace.data.job import SqlAnswer
from headrace.errors import NotEnabled
from headrace.inference.accounts import Account
from headrace.inference.model_runner import ModelRunner
from headrace.inference.price_source import RemoteBounds
from headrace.isolation.child import WorkStop
from headrace.storage.sql_memo import memo_file

THREADS = 8
T = TypeVar("T")


class ServedModels(Struct, frozen=True):
    """The models of a server for one statement. See `Models`."""

    runner: ModelRunner
    account: Account
    loop: asyncio.AbstractEventLoop
    remote: RemoteBounds | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """See `Models.submit`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


class Statements:
    """Made before the event loop runs; then it belongs to the loop. The engine is made with the first
    statement, and anew after settings of it have changed."""

    def __init__(self, settings: Settings) -> None:
        """UsageError where settings of data are wrong."""
        self._settings = checked_settings(settings)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-sql")
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

    async def run(
        self, work: Callable[[DataEngine, WorkStop], SqlAnswer], *, needs_datasets: bool = True
    ) -> SqlAnswer:
        """Run `work` that waits for a statement in a thread; where this is cancelled, the statement ends."""
        stop = WorkStop()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: work(self._made(needs_datasets), stop)
            )
        except asyncio.CancelledError:
            stop.stop()
            raise

    def close(self) -> None:
        """End the engine and what it runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
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
    return settings
