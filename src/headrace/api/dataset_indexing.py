"""Indexes of datasets that a server brings up to date itself, every so often."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from headrace.api.service import Service
from headrace.config.datasets import index_of, read_datasets
from headrace.config.extras import extra_module
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import HeadraceError
from headrace.inference.model_runner import ModelRunner
from headrace.search.client import SearchClient

LOG = logging.getLogger(__name__)
LOOK_S = 1.0
T = TypeVar("T")


class ServedRunner:
    """The models of the server for a thread that writes an index: they yield to all requests."""

    def __init__(self, runner: ModelRunner, loop: asyncio.AbstractEventLoop) -> None:
        self.runner = runner.urgent(BATCH_PRIORITY)
        self._loop, self._stopped = loop, False
        self._running: concurrent.futures.Future[Any] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the server's loop and wait for it, in another thread."""
        self._running = future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if self._stopped:
            future.cancel()
        return future.result()

    def stop(self) -> None:
        """End what runs."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()


class DatasetIndexing:
    """One index after the other, each `every_s` after it was brought up to date. Lives on the event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._due_s: dict[str, float] = {}
        self._models: ServedRunner | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """While the server serves."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            if self._models is not None:
                self._models.stop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            for name, every_s in self._scheduled().items():
                if time.monotonic() >= self._due_s.get(name, 0.0):
                    await self._refresh(name)
                    self._due_s[name] = time.monotonic() + every_s
            await asyncio.sleep(LOOK_S)

    def _scheduled(self) -> Mapping[str, float]:
        found = read_datasets(self._service.settings.datasets)
        indexes = {name: index_of(one, f"datasets.{name}") for name, one in found.items()}
        return {name: one.every_s for name, one in indexes.items() if one is not None and one.every_s > 0}

    async def _refresh(self, name: str) -> None:
        """Bring one up to date; why that fails is logged, and it is tried again when it is due."""
        try:
            engine = await self._service.statements.engine()
            indexing = extra_module("data", "headrace.data.indexing", "duckdb", "pyarrow")
            self._models = models = ServedRunner(self._service.runner, asyncio.get_running_loop())
            with SearchClient(self._service.settings, models=models) as client:
                report = await asyncio.to_thread(indexing.index_dataset, engine, client, name)
        except HeadraceError as error:
            LOG.warning("the index of the dataset %s was not brought up to date: %s", name, error.message)
        except Exception:
            LOG.exception("the index of the dataset %s was not brought up to date", name)
        else:
            if report.added or report.changed or report.removed:
                LOG.info(
                    "the index of the dataset %s: %d added, %d changed, %d removed",
                    *(name, report.added, report.changed, report.removed),
                )
