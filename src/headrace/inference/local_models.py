"""Models that this process loads when something first needs them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from headrace.config.settings import default_cache_dir
from headrace.engine.client import LoadedModel
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.local_handler import LocalHandler
from headrace.inference.loop_thread import LoopThread
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads
from headrace.loading.loader import Progress, load_model
from headrace.loading.options import EngineOptions
from headrace.storage.keys import KeyLimits
from headrace.telemetry.request_metrics import ModelMetrics
from headrace.weights.head import TaskName

T = TypeVar("T")
BUNDLED: Mapping[TaskName, str] = {"embed": "embed", "entities": "tagger"}
"""The shipped model for a task that no loaded one can do."""


class LocalModels:
    """A runner over models of this process, and the loop it lives on. Given models stay the caller's; others
    are loaded by name and closed with this."""

    def __init__(
        self,
        given: Sequence[LoadedModel] = (),
        *,
        default: str | None = None,
        options: EngineOptions | None = None,
        loading: Callable[[str | None], Progress | None] = lambda name: None,
    ) -> None:
        """`default` names the model of requests that name none (None: the shipped one), `options` are those
        of models that are loaded here; `loading` gives what is told how far one has loaded."""
        options = options or EngineOptions(cache_dir=default_cache_dir())
        self._source = _Source(given, default, options, loading)
        self._threads = ModelThreads(2)
        self._handler = LocalHandler(self._source, self._threads)
        self._loop = LoopThread()
        self.runner = ModelRunner(self._handler, self._source, self._threads)
        self.account = Account("", KeyLimits())
        self.remote = None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin work on the models' event loop, from another thread."""
        return self._loop.submit(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The same, and wait for its result."""
        return self._loop.run(work)

    def waiting(self) -> AbstractContextManager[None]:
        """While a statement waits for models: nothing else needs its place here."""
        return nullcontext()

    def close(self) -> None:
        """Close what was loaded here."""
        self._handler.close()
        self._source.close()
        self._loop.close()
        self._threads.close()


class _Source:
    """A `ModelSource` that loads by name and keeps all."""

    def __init__(
        self,
        given: Sequence[LoadedModel],
        default: str | None,
        options: EngineOptions,
        loading: Callable[[str | None], Progress | None],
    ) -> None:
        self._options = options
        self._given = {model.name: model for model in given}
        self._loaded: dict[str | None, LoadedModel] = {}
        self._default, self._loading, self._told = default, loading, set[str | None]()
        self._lock: asyncio.Lock | None = None
        self._metrics = ModelMetrics()

    async def acquire(
        self, name: str | None, keep_alive_s: float | None, call: CallContext
    ) -> tuple[LoadedModel, Callable[[], None]]:
        """See `ModelSource.acquire`."""
        if self._lock is None:  # made on the loop
            self._lock = asyncio.Lock()
        async with self._lock:
            model = self._found(name)
            if model is None:
                model = await asyncio.to_thread(self._load, name)
        call.model = model.name
        return model, lambda: None

    def _found(self, name: str | None) -> LoadedModel | None:
        if name is None and self._default is None:
            able = self.able("generate")
            name = able if able in self._given else None
        asked = name or self._default
        named = next((one for one in self._loaded.values() if one.name == asked), None)
        return self._given.get(asked or "") or self._loaded.get(asked) or named

    def _load(self, name: str | None) -> LoadedModel:
        asked = name or self._default
        progress = None if asked in self._told else self._loading(asked)  # each try of a wrong name says it
        self._told.add(asked)
        self._loaded[asked] = found = load_model(asked, self._options, progress=progress)
        return found

    def metrics(self, model: LoadedModel) -> ModelMetrics:
        """See `ModelSource.metrics`."""
        return self._metrics

    def encoders(self) -> str:
        """See `ModelSource.encoders`."""
        return "the shipped model embed makes them"

    def able(self, *tasks: TaskName) -> str | None:
        """See `ModelSource.able`: a model that is there, else a shipped one. Which decoders statements have
        named before does not change what those without a name ask."""
        loaded = [
            model for name, model in self._loaded.items() if name == self._default or "generate" not in tasks
        ]
        for model in (*self._given.values(), *loaded):
            if set(tasks) & set(model.tasks):
                return model.name
        return next((BUNDLED[task] for task in tasks if task in BUNDLED), None)

    def close(self) -> None:
        """Close what was loaded here."""
        for model in self._loaded.values():
            model.close()
        self._loaded.clear()
