"""Where a handler gets loaded models from, and the threads that prepare requests for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from headrace.errors import HeadraceError, ModelNotFound
from headrace.inference.adapted_engine import adapted_name, with_adapter
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.loading.planned_model import model_of
from headrace.storage.aliases import Alias
from headrace.telemetry.request_metrics import ModelMetrics
from headrace.weights.checkpoint import MAX_CONFIG_BYTES
from headrace.weights.confined import confined
from headrace.weights.head import TaskName, chosen_head, tasks_without_head
from headrace.weights.hub.resolver import resolve
from headrace.weights.strict_json import read_object

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.loading.options import EngineOptions
    from headrace.tokenization.tokenizer import Tokenizer
    from headrace.workers.model_adapters import NamedAdapter
    from headrace.workers.model_entry import ModelEntry
    from headrace.workers.model_manager import ModelManager

T = TypeVar("T")

_OLLAMAS_ALONE = ParameterWarning(
    "model", "the system prompt and options of this alias hold for Ollama's API only"
)


class ModelSource(Protocol):
    """Loaded models by name."""

    async def acquire(
        self, name: str | None, keep_alive_s: float | None, call: CallContext
    ) -> tuple[LoadedModel, Callable[[], None]]:
        """The model of that name (None: the default one), and what to call when `call` needs it no longer.
        `call.model` is set before it loads.

        Raises ModelNotFound, ModelLoading where loading takes too long to wait for, Overloaded where models
        in use leave no memory for it.
        """
        ...

    def metrics(self, model: LoadedModel) -> ModelMetrics:
        """The counters of a model's requests."""
        ...

    def encoders(self) -> str:
        """Which models make embeddings, for an error message."""
        ...

    def able(self, *tasks: TaskName) -> str | None:
        """The first model that can do one of `tasks`, None where no model is known to."""
        ...


class ManagedModels:
    """The models of a server, loaded on demand."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self.aliases: Mapping[str, Alias] = {}
        """Names that clients gave to models; requests of every API may use them."""
        self._metrics: dict[str, ModelMetrics] = {}
        self._tasks_of_unloaded: dict[tuple[str, str], Sequence[TaskName]] = {}

    def alias_of(self, name: str | None) -> Alias | None:
        """The alias of that name, where no model has it."""
        return None if name is None or self._manager.serves(name) else self.aliases.get(name)

    def adapted(self, name: str | None) -> tuple[ModelEntry, NamedAdapter] | None:
        """The model and the adapter of a name such as `base:adapter`, or of an alias of one; else None."""
        alias = self.alias_of(name)
        return self._manager.adapted(name if alias is None else alias.target)

    def find(self, name: str | None, call: CallContext | None = None) -> ModelEntry:
        """The served model of that name, or of an alias; None is the default. ModelNotFound. What an alias
        says besides is for Ollama's API alone: a warning of `call` says so."""
        alias = self.alias_of(name)
        if alias is None:
            return self._manager.find(name)
        says_more = alias.system is not None or alias.parameters
        if call is not None and says_more and _OLLAMAS_ALONE not in call.warnings:
            call.warnings.append(_OLLAMAS_ALONE)
        return self._manager.find(alias.target)

    async def acquire(
        self, name: str | None, keep_alive_s: float | None, call: CallContext
    ) -> tuple[LoadedModel, Callable[[], None]]:
        """As `ModelSource.acquire`."""
        entry, adapted = self.find(name, call), self.adapted(name)
        if adapted is None:
            call.model = entry.name
            return await self._manager.acquire(entry, keep_alive_s, user=call)
        adapter = adapted[1]
        call.model = adapted_name(entry.name, adapter.name)
        model, release = await self._manager.acquire(entry, keep_alive_s, user=call)
        if adapter.failure is not None or not adapter.digest:
            release()
            cause = "it is being loaded" if adapter.failure is None else adapter.failure.message
            raise ModelNotFound(f"the adapter {adapter.name!r} is not loaded: {cause}", param="model")
        return with_adapter(model, adapter.name, adapter.digest, base=entry.name), release

    def metrics(self, model: LoadedModel) -> ModelMetrics:
        """As `ModelSource.metrics`; those of an adapter are its model's."""
        return self.metrics_of(model.base or model.name)

    def encoders(self) -> str:
        """As `ModelSource.encoders`."""
        entries = self._manager.entries
        able = [one.name for one in entries if one.model and "embed" in one.model.tasks]
        unloaded = [one.name for one in entries if one.model is None]
        found = f"of the loaded models, {', '.join(able)} can" if able else "no loaded model can"
        return f"{found}; not loaded: {', '.join(unloaded[:10])}" if unloaded else found

    def able(self, *tasks: TaskName) -> str | None:
        """As `ModelSource.able`; of models that are not loaded their files say what they can do."""
        wanted = set(tasks)
        return next((one.name for one in self._manager.entries if wanted & set(self._tasks(one))), None)

    def _tasks(self, entry: ModelEntry) -> Sequence[TaskName]:
        """What a model can be asked for; nothing that is known, where it is not on this machine. Files are
        read once and not for every request: this runs on the event loop."""
        if entry.model is not None:
            return entry.model.tasks
        name, options = entry.spec.model, entry.spec.options
        key = (name, options.pooling)
        if key not in self._tasks_of_unloaded:
            try:
                self._tasks_of_unloaded[key] = _tasks_of_files(name, options)
            except (HeadraceError, FileNotFoundError):  # says so when it is loaded
                return ()
        return self._tasks_of_unloaded[key]

    def metrics_of(self, name: str) -> ModelMetrics:
        """The counters of the model of that name."""
        return self._metrics.setdefault(name, ModelMetrics())


def _tasks_of_files(name: str, options: EngineOptions) -> Sequence[TaskName]:
    """What the files of a model, and its `pooling` option, say that it can do. Raises what prevents reading
    them. Of a GGUF file, whose metadata take long to read, only the option."""
    folder = resolve(name, offline=True)
    head = chosen_head(options.pooling, folder)
    if head is not None:
        return head.tasks
    if options.pooling != "auto":
        pooling = options.pooling
    elif folder.is_dir():
        config = read_object(confined(folder, "config.json"), MAX_CONFIG_BYTES)
        model, _ = model_of(config, folder, options)
        pooling = model.pooling
    else:
        pooling = None
    return tasks_without_head(encodes=pooling is not None, of_each_token=pooling == "none")


class OneModel:
    """A single model that is loaded already and stays so. `adapters` are digests by name."""

    def __init__(self, model: LoadedModel, adapters: Mapping[str, str] | None = None) -> None:
        self.model = model
        self.adapters = adapters or {}
        self._metrics = ModelMetrics()

    async def acquire(
        self, name: str | None, keep_alive_s: float | None, call: CallContext
    ) -> tuple[LoadedModel, Callable[[], None]]:
        """The model, whatever name is asked for; `:NAME` is one of its adapters. ModelNotFound."""
        base, colon, adapter = (name or "").partition(":")
        model = self.model
        if colon and not base:
            if adapter not in self.adapters:
                loaded = ", ".join(self.adapters) or "none"
                raise ModelNotFound(
                    f"the adapter {adapter[:200]!r} is not loaded, loaded are: {loaded}", param="adapter"
                )
            model = with_adapter(model, adapter, self.adapters[adapter])
        call.model = model.name
        return model, lambda: None

    def metrics(self, model: LoadedModel) -> ModelMetrics:
        """The counters of the model's requests."""
        return self._metrics

    def encoders(self) -> str:
        """As `ModelSource.encoders`."""
        return "no other model is loaded"

    def able(self, *tasks: TaskName) -> str | None:
        """As `ModelSource.able`."""
        return self.model.name if set(tasks) & set(self.model.tasks) else None


class ModelThreads:
    """Up to `each` threads for each loaded model, and one for its requests of class batch, behind which no
    other waits; they end with its tokenizer. Lives on the event loop."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._pools: WeakKeyDictionary[Tokenizer, ThreadPoolExecutor] = WeakKeyDictionary()
        self._batch: WeakKeyDictionary[Tokenizer, ThreadPoolExecutor] = WeakKeyDictionary()

    def run(self, model: LoadedModel, work: Callable[[], T], *, batch: bool = False) -> asyncio.Future[T]:
        """Run `work` in one of the model's threads. Cancelled before it has begun, it is dropped."""
        pools = self._batch if batch else self._pools
        pool = pools.get(model.tokenizer)
        if pool is None:
            pool = ThreadPoolExecutor(1 if batch else self._each, thread_name_prefix="headrace-prompt")
            pools[model.tokenizer] = pool
        return asyncio.get_running_loop().run_in_executor(pool, work)

    def close(self) -> None:
        """Drop what has not begun."""
        for pool in (*self._pools.values(), *self._batch.values()):
            pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pool in (*self._pools.values(), *self._batch.values()):
            pool.shutdown()
