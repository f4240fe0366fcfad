"""One model of a server: its spec, its state, and its users."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct, field

from headrace.engine.client import LoadedModel, MemoryPlan
from headrace.errors import HeadraceError
from headrace.workers.model_adapters import ModelAdapters
from headrace.workers.model_spec import ModelSpec

Progress = Callable[[int, int], None]
State = Literal["unloaded", "loading", "loaded", "failed"]


class ModelLauncher(Protocol):
    """A model being loaded; see WorkerLoader. `plan` and `load` block and run in a thread."""

    def plan(self, memory_bytes: int | None) -> MemoryPlan:
        """The memory plan; raises OutOfMemory if it exceeds `memory_bytes`."""
        ...

    def load(self, progress: Progress) -> LoadedModel:
        """Load the model and start its engine."""
        ...

    def close(self) -> None:
        """Abort."""
        ...


class ModelEntry(Struct, eq=False):
    """One model of the manager. `users` need it in memory; `used_s` is the time of the last use.

    `keep_alive_s` is the value of its most recent user. `failure` is why it could not be loaded.
    `past_restarts` counts worker restarts of engines that it had before.
    """

    spec: ModelSpec
    model: LoadedModel | None = None
    fixed: bool = False
    users: Counter[object] = field(default_factory=Counter[object])
    used_s: float = 0.0
    keep_alive_s: float = -1.0
    reserved_bytes: int = 0
    cache_failures: int = 0
    cache_damages: int = 0
    past_restarts: int = 0
    failure: HeadraceError | None = None
    loading: asyncio.Task[LoadedModel] | None = None
    unloading: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))
    own_adapters: ModelAdapters | None = None

    @property
    def adapters(self) -> ModelAdapters:
        """Its adapters."""
        if self.own_adapters is None:
            self.own_adapters = ModelAdapters(self.spec.adapters)
        return self.own_adapters

    @property
    def uses(self) -> int:
        """Number of current uses."""
        return len(self.users)

    @property
    def name(self) -> str:
        """The name that clients use."""
        return self.spec.name

    @property
    def cause(self) -> str | None:
        """Why it failed, or None."""
        if self.model is not None:
            return self.model.engine.status().failure
        return None if self.failure is None else self.failure.message

    @property
    def restarts(self) -> int:
        """Number of worker restarts."""
        return self.past_restarts + (0 if self.model is None else self.model.engine.status().restarts)

    @property
    def state(self) -> State:
        """Its state; `failed` includes an engine whose workers died repeatedly."""
        if self.loading is not None:
            return "loading"
        if self.model is None:
            return "unloaded" if self.failure is None else "failed"
        return "failed" if self.model.engine.status().state == "failed" else "loaded"


class Policy(Struct, frozen=True, kw_only=True):
    """`memory_bytes` is the budget of all models. A request waits up to `load_timeout` for a load.

    `load_on_demand` creates the spec for a name without an entry; None if there is no such model, which with
    `any_name` means the default model.
    """

    memory_bytes: int
    load_timeout: float = 60.0
    load_on_demand: Callable[[str], ModelSpec | None] = field(default=lambda name: None)
    any_name: bool = False
