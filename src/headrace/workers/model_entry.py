"""One model of a server's table: what is to be served, what is loaded of it, who uses it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct, field

from headrace.engine.client import LoadedModel, MemoryPlan
from headrace.errors import HeadraceError
from headrace.workers.model_spec import ModelSpec

Progress = Callable[[int, int], None]
State = Literal["unloaded", "loading", "loaded", "failed"]


class ModelLauncher(Protocol):
    """A model on its way; see WorkerLaunch. `plan` and `load` block and run on a thread."""

    def plan(self, memory_bytes: int | None) -> MemoryPlan:
        """What the model takes; OutOfMemory where that is more than `memory_bytes`."""
        ...

    def load(self, progress: Progress) -> LoadedModel:
        """The model, running."""
        ...

    def close(self) -> None:
        """Give up."""
        ...


class ModelEntry(Struct, eq=False):
    """One model of the table. `users` are those who need it in memory; `used_s` is when one last did.

    `keep_alive_s` is what its latest user wanted. `failure` is why it could not be loaded. `past_restarts`
    are of engines that it had before.
    """

    spec: ModelSpec
    model: LoadedModel | None = None
    fixed: bool = False
    users: Counter[object] = field(default_factory=Counter[object])
    used_s: float = 0.0
    keep_alive_s: float = -1.0
    reserved_bytes: int = 0
    cache_failures: int = 0
    past_restarts: int = 0
    failure: HeadraceError | None = None
    loading: asyncio.Task[LoadedModel] | None = None
    unloading: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def uses(self) -> int:
        """How many need it in memory."""
        return len(self.users)

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.spec.name

    @property
    def cause(self) -> str | None:
        """Why it failed, where it did."""
        if self.model is not None:
            return self.model.engine.status().failure
        return None if self.failure is None else self.failure.message

    @property
    def restarts(self) -> int:
        """How often another worker took the place of a dead one."""
        return self.past_restarts + (0 if self.model is None else self.model.engine.status().restarts)

    @property
    def state(self) -> State:
        """Where it stands; `failed` also where its workers died again and again."""
        if self.loading is not None:
            return "loading"
        if self.model is None:
            return "unloaded" if self.failure is None else "failed"
        return "failed" if self.model.engine.status().state == "failed" else "loaded"


class Policy(Struct, frozen=True, kw_only=True):
    """`memory_bytes` is for all models together. A request waits `load_wait_s` for its model to load.

    `on_demand` makes the spec of a name that is not in the table, None where there is no such model.
    """

    memory_bytes: int
    load_wait_s: float = 60.0
    on_demand: Callable[[str], ModelSpec | None] = field(default=lambda name: None)
