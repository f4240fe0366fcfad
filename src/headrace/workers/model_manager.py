"""The models of one server: loaded on first use, unloaded when idle, within one memory budget."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from headrace.engine.client import LoadedModel, MemoryPlan
from headrace.errors import (
    EngineStopped,
    HeadraceError,
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    ModelTooLarge,
    OutOfMemory,
    Overloaded,
)
from headrace.workers.model_adapters import NamedAdapter
from headrace.workers.model_entry import ModelEntry, ModelLauncher, Policy, Progress
from headrace.workers.model_spec import ModelSpec

LOG = logging.getLogger("headrace.workers")

T = TypeVar("T")


class ModelManager:
    """Runs on the event loop; created before it starts. The first spec is the default model."""

    def __init__(
        self, specs: Sequence[ModelSpec], launch: Callable[[ModelSpec], ModelLauncher], policy: Policy
    ) -> None:
        self.policy = policy
        self.elsewhere: Sequence[str] = ()
        """Models that another handler answers, for the error that lists what is served."""
        self._launch = launch
        self._entries = {spec.name: ModelEntry(spec) for spec in specs}
        self._retired: set[ModelEntry] = set()  # no longer served, but still in use
        self._unlisted: dict[str, ModelEntry] = {}
        self._planning = asyncio.Lock()
        self._launches: set[ModelLauncher] = set()
        self._closing = False

    @classmethod
    def fixed(cls, model: LoadedModel, spec: ModelSpec) -> ModelManager:
        """A manager with one model that is already loaded and stays loaded; the caller owns it."""
        table = cls([spec], _no_launch, Policy(memory_bytes=0))
        entry = table.default
        entry.model, entry.fixed = model, True
        return table

    # -- lookup
    # -------------------------------------------------------------------------------------------

    @property
    def entries(self) -> list[ModelEntry]:
        """All models, the default one first."""
        return list(self._entries.values())

    @property
    def default(self) -> ModelEntry:
        """The model for requests that name none."""
        return next(iter(self._entries.values()))

    @property
    def loaded(self) -> list[LoadedModel]:
        """All models in memory, including retired ones that are still in use."""
        models = [entry.model for entry in self._all]
        return [model for model in models if model is not None]

    @property
    def _all(self) -> list[ModelEntry]:
        return [*self._entries.values(), *self._unlisted.values(), *self._retired]

    def serves(self, name: str) -> bool:
        """Whether a configured or loaded model has that name or alias, or is there with that adapter."""
        return self._named(name) is not None or self.adapted(name) is not None

    def _named(self, name: str) -> ModelEntry | None:
        found = self._entries.get(name) or self._unlisted.get(name)
        if found is None:
            found = next((entry for entry in self._entries.values() if name in entry.spec.aliases), None)
        return found

    def adapted(self, name: str | None) -> tuple[ModelEntry, NamedAdapter] | None:
        """The model and its adapter of a name such as `base:adapter`; None where it is none."""
        base, colon, adapter = (name or "").rpartition(":")
        entry = self._named(base) if colon and self._named(name or "") is None else None
        found = None if entry is None else entry.adapters.find(adapter)
        return None if entry is None or found is None else (entry, found)

    def find(self, name: str | None) -> ModelEntry:
        """The model with that name or alias; None is the default, as is any other name where the policy has
        `any_name`, but for an adapter that is not there. ModelNotFound lists the served models."""
        if name is None:
            return self.default
        found, adapted = self._named(name), self.adapted(name)
        if found is not None:
            return found
        if adapted is not None:
            return adapted[0]
        spec = self.policy.load_on_demand(name)
        if spec is None and self.policy.any_name and not self._asks_for_adapter(name):
            return self.default
        if spec is None and name in self.elsewhere:
            raise ModelNotFound(
                f"{name[:200]!r} is a remote model: this needs a model of this machine, which are "
                f"{', '.join(map(repr, self._entries))}",
                param="model",
            )
        if spec is None:
            served = ", ".join(map(repr, [*self._entries, *self.elsewhere]))
            raise ModelNotFound(
                f"the model {name[:200]!r} is not served here: this server serves {served}", param="model"
            )
        return self._entries.setdefault(spec.name, ModelEntry(spec))

    def _asks_for_adapter(self, name: str) -> bool:
        base, _, adapter = name.rpartition(":")
        return adapter != "latest" and self._named(base) is not None  # which Ollama's clients append to names

    # -- use
    # ----------------------------------------------------------------------------------------------

    async def acquire(
        self, entry: ModelEntry, keep_alive_s: float | None = None, *, user: object = None
    ) -> tuple[LoadedModel, Callable[[], None]]:
        """Load the model if necessary; returns it with a function that releases it.

        Raises ModelLoading if loading takes long, or the error that prevents it. `keep_alive_s` None means
        the spec's value. A `user` that acquires it several times counts once.
        """
        user = user or object()
        self._enter(entry, user)
        try:
            model = entry.model or await self._wait(entry)
        except BaseException:
            self._leave(entry, user)
            raise
        entry.keep_alive_s = entry.spec.keep_alive_s if keep_alive_s is None else keep_alive_s
        return model, self._once(entry, user)

    def share(self, model: LoadedModel, user: object) -> Callable[[], None]:
        """Add a user to a model that is already in use; returns a function that releases it."""
        entry = next(e for e in self._all if e.model is model)
        self._enter(entry, user)
        return self._once(entry, user)

    async def unload_when_idle(self, entry: ModelEntry) -> None:
        """Unload as soon as it is not in use. Raises InvalidRequest for a model of `fixed`."""
        if entry.fixed:
            raise InvalidRequest(
                f"{entry.name!r} belongs to the program that started this server and stays loaded",
                param="model",
            )
        entry.failure = None
        entry.keep_alive_s = 0.0
        self._settle(entry)
        if entry.unloading is not None:
            await entry.unloading

    async def forget_failure(self, entry: ModelEntry) -> None:
        """If its engine has failed permanently, reset the entry: the next use loads the model again."""
        if entry.model is not None and entry.model.engine.status().state == "failed" and not entry.fixed:
            if entry.unloading is None:
                entry.unloading = asyncio.ensure_future(self._unload(entry))
            await entry.unloading

    def _enter(self, entry: ModelEntry, user: object) -> None:
        entry.users[user] += 1
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    def _once(self, entry: ModelEntry, user: object) -> Callable[[], None]:
        held = [entry]

        def release() -> None:
            if held:
                self._leave(held.pop(), user)

        return release

    def _leave(self, entry: ModelEntry, user: object) -> None:
        entry.users[user] -= 1
        if not entry.users[user]:
            del entry.users[user]
        entry.used_s = asyncio.get_running_loop().time()
        self._settle(entry)

    def _settle(self, entry: ModelEntry) -> None:
        """If the model is not in use, unload it now or after its keep-alive time."""
        if entry.uses or entry.model is None or entry.fixed or entry.unloading is not None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        if entry.keep_alive_s == 0 or entry in self._retired:
            entry.unloading = asyncio.ensure_future(self._unload(entry))
        elif entry.keep_alive_s > 0:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(entry.keep_alive_s, self._idle, entry)

    def _idle(self, entry: ModelEntry) -> None:
        entry.timer = None
        if not entry.uses and entry.model is not None and entry.unloading is None:
            entry.unloading = asyncio.ensure_future(self._unload(entry))

    # -- loading
    # ------------------------------------------------------------------------------------------

    async def load(self, entry: ModelEntry, progress: Progress = lambda done, total: None) -> LoadedModel:
        """Load the model, however long it takes; raises the error that prevents it.

        That is no use of it, but its time without one begins. With a keep-alive time of 0 it waits for the
        first.
        """
        model = await asyncio.shield(self._begin(entry, progress))
        if entry.spec.keep_alive_s > 0 and not entry.uses and entry.timer is None:
            entry.keep_alive_s = entry.spec.keep_alive_s
            self._settle(entry)
        return model

    async def _wait(self, entry: ModelEntry) -> LoadedModel:
        task = self._begin(entry)
        done, _ = await asyncio.wait({task}, timeout=self.policy.load_timeout)
        if not done:
            raise ModelLoading(
                f"{entry.name!r} has been loading for more than {self.policy.load_timeout:g} s: "
                "try again in a moment",
                retry_after_s=5.0,
                reason="loading",
            )
        return task.result()

    def _begin(
        self, entry: ModelEntry, progress: Progress = lambda done, total: None
    ) -> asyncio.Task[LoadedModel]:
        if entry.loading is None:
            entry.loading = asyncio.ensure_future(self._load(entry, progress))
            entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.loading

    async def _load(self, entry: ModelEntry, progress: Progress) -> LoadedModel:
        try:
            if entry.unloading is not None:
                await entry.unloading
            if entry.model is not None:
                return entry.model
            if self._closing:
                raise EngineStopped("the server is shutting down: send the request elsewhere")
            launch = await in_thread(lambda: self._launch(entry.spec))
            self._launches.add(launch)
            try:
                async with self._planning:
                    entry.reserved_bytes = (await self._plan(launch)).total_bytes
                entry.model = await in_thread(lambda: launch.load(progress))
            except BaseException:
                entry.reserved_bytes = 0
                await in_thread(launch.close)
                raise
            finally:
                self._launches.discard(launch)
            if entry.adapters.named:
                await entry.adapters.load_all(entry.model, lambda: self.left_bytes)
            entry.failure = None
            entry.cache_failures += entry.model.cache_failures
            entry.cache_damages += entry.model.cache_damages
            return entry.model
        except HeadraceError as error:
            entry.failure = error
            raise
        finally:
            entry.loading = None
            self._settle(entry)

    async def _plan(self, launch: ModelLauncher) -> MemoryPlan:
        """A plan within the budget, after unloading as many idle models as necessary."""
        while True:
            left = self.policy.memory_bytes - self._reserved()
            try:
                plan = await in_thread(lambda left=left: launch.plan(max(left, 1)))
            except OutOfMemory as error:
                if await self._make_room():
                    continue
                raise self._no_room(error) from None
            return plan

    async def load_adapter(self, entry: ModelEntry, name: str, path: Path, *, in_place: bool) -> NamedAdapter:
        """Load an adapter of a model, which is loaded where it is not. Raises what prevents it."""
        model, release = await self.acquire(entry)
        try:
            return await entry.adapters.load(model, name, path, lambda: self.left_bytes, in_place=in_place)
        finally:
            release()

    @property
    def left_bytes(self) -> int:
        """Of the memory for models, what none has; with models of `fixed` nothing is known to be short."""
        if any(entry.fixed for entry in self._entries.values()):
            return 1 << 62
        return self.policy.memory_bytes - self._reserved()

    def _reserved(self) -> int:
        return sum(
            entry.reserved_bytes + (entry.adapters.nbytes if entry.model else 0) for entry in self._all
        )

    def _no_room(self, error: OutOfMemory) -> HeadraceError:
        used, budget = self._reserved(), self.policy.memory_bytes
        if error.needed_bytes > budget:
            return ModelTooLarge(
                f"{error.message}; it takes {error.needed_bytes / 1e9:.2f} GB in all and may have the "
                f"{budget / 1e9:.2f} GB for models: it does not fit this server",
                needed_bytes=error.needed_bytes,
            )
        if not used:
            return error
        return Overloaded(
            f"{error.message}; {used / 1e9:.2f} GB of the {budget / 1e9:.2f} GB for models "
            "are taken by others in use: try again later",
            retry_after_s=5.0,
            reason="memory",
        )

    async def _make_room(self) -> bool:
        """Unload the least recently used idle model; False if there is none."""
        idle = [
            entry
            for entry in [*self._entries.values(), *self._unlisted.values()]
            if entry.model is not None and not entry.uses and not entry.fixed and entry.loading is None
        ]
        if not idle:
            return False
        entry = min(idle, key=lambda entry: entry.used_s)
        if entry.unloading is None:
            entry.unloading = asyncio.ensure_future(self._unload(entry))
        await entry.unloading
        return True

    async def _unload(self, entry: ModelEntry) -> None:
        model, entry.model = entry.model, None
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        try:
            if model is not None:
                entry.past_restarts += model.engine.status().restarts
                await in_thread(model.close)
        finally:
            entry.reserved_bytes = 0
            entry.unloading = None
            self._retired.discard(entry)

    def add_unlisted(self, spec: ModelSpec) -> ModelEntry:
        """Serve a model that is in no list, and which no update removes, until `remove_unlisted`."""
        return self._unlisted.setdefault(spec.name, ModelEntry(spec))

    def remove_unlisted(self, name: str) -> None:
        """Serve it no more: it is unloaded after its last use."""
        entry = self._unlisted.pop(name, None)
        if entry is not None and (entry.model is not None or entry.loading is not None):
            self._retired.add(entry)
            self._settle(entry)

    # -- reconfiguration
    # ----------------------------------------------------------------------------------

    def update(self, specs: Sequence[ModelSpec], policy: Policy) -> None:
        """Serve these models from now on. Changed and removed models are unloaded after their last use."""
        self.policy = policy
        before = self._entries
        self._entries = dict[str, ModelEntry]()
        for spec in specs:
            entry = before.get(spec.name)
            if entry is not None and entry.spec.loads_like(spec):
                entry.spec = spec
                self._entries[spec.name] = before.pop(spec.name)
            else:
                self._entries[spec.name] = ModelEntry(spec)
        for entry in before.values():
            if entry.model is not None or entry.loading is not None:
                self._retired.add(entry)
                self._settle(entry)

    async def close(self) -> None:
        """Stop all models except fixed ones, and all loads in progress."""
        self._closing = True
        closers: list[Callable[[], None]] = [launch.close for launch in self._launches]
        for entry in self._all:
            if entry.timer is not None:
                entry.timer.cancel()
            if entry.model is not None and not entry.fixed:
                closers.append(entry.model.close)
        await asyncio.gather(*(in_thread(closer) for closer in closers), return_exceptions=True)


def _no_launch(spec: ModelSpec) -> ModelLauncher:
    raise EngineStopped(f"{spec.name!r} cannot be loaded again here")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` on a daemon thread, so that the program can exit while it runs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            outcome, value = done.set_exception, error
        else:
            outcome, value = done.set_result, result
        with suppress(RuntimeError):  # the loop has closed: the server was stopped meanwhile
            loop.call_soon_threadsafe(lambda: done.done() or outcome(value))  # type: ignore[arg-type]

    threading.Thread(target=run, name="headrace-load", daemon=True).start()
    return await done
