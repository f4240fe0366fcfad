"""The models of a server: loading on first use, idle unloading, one memory budget, reconfiguration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import EngineStatus
from headrace.errors import (
    CorruptFile,
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    ModelTooLarge,
    OutOfMemory,
    Overloaded,
)
from headrace.loading.options import EngineOptions
from headrace.workers.model_entry import ModelEntry, Policy
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec

SIZES = {"small": 30, "middle": 50, "large": 80}


class FakeEngine:
    state = "running"

    def status(self) -> EngineStatus:
        return EngineStatus(0, 0, 0, 0, 0, 0, 0.0, self.state != "failed", state=self.state)  # type: ignore[arg-type]

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        return AdapterInfo("digest", 4, path.stat().st_size)


@dataclass(eq=False)
class FakeModel:
    name: str
    closed: list[str]
    engine: FakeEngine = field(default_factory=FakeEngine)
    cache_failures: int = 0
    cache_damages: int = 0

    def close(self) -> None:
        self.closed.append(self.name)


@dataclass
class Machine:
    """Resources of launches; `gate` blocks loads, `failures` make them fail."""

    loads: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    gaveup: list[str] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    waiting: bool = False
    loop: asyncio.AbstractEventLoop | None = None

    def launch(self, spec: ModelSpec) -> Any:
        return FakeLaunch(self, spec.name)


@dataclass(eq=False)
class FakeLaunch:
    machine: Machine
    name: str

    def plan(self, memory_bytes: int | None) -> Any:
        size = SIZES[self.name]
        if memory_bytes is not None and size > memory_bytes:
            raise OutOfMemory(f"needs {size}, {memory_bytes} are free", needed_bytes=size)
        return SimpleNamespace(total_bytes=size)

    def load(self, progress: object) -> Any:
        machine = self.machine
        if machine.gate is not None and machine.loop is not None:
            machine.waiting = True
            asyncio.run_coroutine_threadsafe(machine.gate.wait(), machine.loop).result()
        if self.name in machine.failures:
            raise machine.failures[self.name]
        machine.loads.append(self.name)
        return FakeModel(self.name, machine.closed)

    def close(self) -> None:
        self.machine.gaveup.append(self.name)


def spec(name: str, **more: Any) -> ModelSpec:
    return ModelSpec(name=name, model=name, options=EngineOptions(), **more)


def run(
    test: Callable[[ModelManager, Machine], Awaitable[None]],
    *specs: ModelSpec,
    memory_bytes: int = 100,
    load_timeout: float = 20.0,
) -> Machine:
    machine = Machine()

    async def main() -> None:
        policy = Policy(memory_bytes=memory_bytes, load_timeout=load_timeout)
        table = ModelManager(specs or [spec(name) for name in SIZES], machine.launch, policy)
        machine.loop = asyncio.get_running_loop()
        await test(table, machine)
        await table.close()

    asyncio.run(main())
    return machine


async def settled(entry: ModelEntry) -> None:
    while entry.unloading is not None or entry.loading is not None:
        await asyncio.sleep(0)


def states(table: ModelManager) -> dict[str, str]:
    return {entry.name: entry.state for entry in table.entries}


def test_a_model_loads_once_for_concurrent_requests() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        assert states(table) == dict.fromkeys(SIZES, "unloaded")
        entry = table.find("middle")
        paused = await asyncio.gather(*(table.acquire(entry) for _ in range(5)))
        assert len({id(model) for model, _ in paused}) == 1
        assert machine.loads == ["middle"]
        assert entry.uses == 5
        for _, release in paused:
            release()
            release()  # releasing once is enough
        assert entry.uses == 0
        assert states(table)["middle"] == "loaded"

    run(test)


def test_names_aliases_and_unknown_models() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        assert table.find(None) is table.find("gpt-4o") is table.default
        for name in ("", "../etc/passwd", "large"):
            with pytest.raises(ModelNotFound, match="'small', 'middle'"):
                table.find(name)
        table.policy = replace(
            table.policy, load_on_demand=lambda name: spec(name) if name == "large" else None
        )
        assert table.find("large").name == "large"
        assert [entry.name for entry in table.entries] == ["small", "middle", "large"]

    run(test, spec("small", aliases=("gpt-4o",)), spec("middle"))


def test_a_long_load_is_503_and_continues() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        machine.gate = asyncio.Event()
        entry = table.default
        with pytest.raises(ModelLoading) as caught:
            await table.acquire(entry)
        assert caught.value.retry_after_s > 0
        assert (entry.uses, entry.state) == (0, "loading")
        machine.gate.set()
        assert (await table.acquire(entry))[0] is entry.model
        assert machine.loads == ["small"]

    run(test, load_timeout=0.01)


def test_a_load_error_is_reported_and_retried() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        machine.failures["small"] = CorruptFile("cut short")
        with pytest.raises(CorruptFile):
            await table.acquire(table.default)
        assert (table.default.state, table.default.cause) == ("failed", "cut short")
        assert machine.gaveup == ["small"]
        machine.failures.clear()
        await table.acquire(table.default)
        assert (table.default.state, table.default.cause) == ("loaded", None)

    run(test)


def test_idle_models_are_evicted_least_recently_used_first() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        for name in ("small", "middle", "small"):
            _, release = await table.acquire(table.find(name))
            release()
            await asyncio.sleep(0.001)
        _, release = await table.acquire(table.find("large"))
        assert machine.closed == ["middle", "small"]
        assert states(table) == {"small": "unloaded", "middle": "unloaded", "large": "loaded"}
        release()

    run(test)


def test_a_model_in_use_is_never_unloaded() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        _, release = await table.acquire(table.find("middle"))
        with pytest.raises(Overloaded, match="needs 80, 50 are free") as caught:
            await table.acquire(table.find("large"))
        assert caught.value.reason == "memory"
        assert machine.closed == []
        release()
        await table.acquire(table.find("large"))
        assert machine.closed == ["middle"]

    run(test)


def test_a_model_that_never_fits_is_reported() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        _, release = await table.acquire(table.find("small"))  # an unrelated user
        with pytest.raises(ModelTooLarge, match=r"needs 80, .* it does not fit this server") as caught:
            await table.acquire(table.find("large"))
        assert caught.value.status == 400
        release()

    run(test, memory_bytes=60)


def test_concurrent_loads_share_the_budget() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        results = await asyncio.gather(
            table.acquire(table.find("middle")), table.acquire(table.find("large")), return_exceptions=True
        )
        assert [isinstance(result, Overloaded) for result in results].count(True) == 1

    run(test)


def test_keep_alive() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        entry = table.default
        _, release = await table.acquire(entry)
        _, other = await table.acquire(entry, keep_alive_s=0)
        other()
        assert entry.state == "loaded"  # it is still in use
        release()
        await settled(entry)
        assert (entry.state, machine.closed) == ("unloaded", ["small"])
        _, release = await table.acquire(entry, keep_alive_s=0.001)
        release()
        while entry.model is not None:
            await asyncio.sleep(0.001)
        _, release = await table.acquire(entry, keep_alive_s=-1)
        release()
        assert entry.timer is None
        _, release = await table.acquire(entry)  # the spec's own
        release()
        assert entry.timer is not None
        _, release = await table.acquire(entry)
        assert entry.timer is None  # in use again

    run(test, spec("small", keep_alive_s=600.0))


def test_a_model_that_is_never_used_is_unloaded_as_well() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        small, middle, large = (table.find(name) for name in ("small", "middle", "large"))
        await table.load(small)
        while small.model is not None:
            await asyncio.sleep(0.001)
        await settled(small)
        assert machine.closed == ["small"]
        await table.load(middle)
        await asyncio.sleep(0.01)
        assert middle.timer is None and middle.state == "loaded"  # it waits for its first use
        await table.load(large)
        assert large.timer is None and large.state == "loaded"  # it is kept for ever

    specs = (spec("small", keep_alive_s=0.001), spec("middle", keep_alive_s=0.0), spec("large"))
    run(test, *specs)


def test_unload_waits_for_the_last_use() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        entry = table.default
        model, release = await table.acquire(entry)
        more = table.share(model, "background")
        await table.unload_when_idle(entry)
        release()
        assert entry.state == "loaded"
        more()
        await settled(entry)
        assert entry.state == "unloaded"
        await table.unload_when_idle(entry)

    run(test)


def test_a_failed_engine_can_be_loaded_again() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        model, release = await table.acquire(table.default)
        release()
        model.engine.state = "failed"  # type: ignore[attr-defined]
        assert table.default.state == "failed"
        await table.forget_failure(table.default)
        await table.acquire(table.default)
        assert machine.loads == ["small", "small"]
        assert table.default.state == "loaded"

    run(test)


def test_a_fixed_model_stays() -> None:
    async def main() -> None:
        model: Any = FakeModel("mine", [])
        table = ModelManager.fixed(model, spec("mine"))
        paused, release = await table.acquire(table.find("mine"), keep_alive_s=0)
        release()
        assert paused is model
        with pytest.raises(InvalidRequest, match="stays loaded"):
            await table.unload_when_idle(table.default)
        await table.close()
        assert model.closed == []

    asyncio.run(main())


def test_an_update_keeps_what_is_the_same_and_drains_the_rest() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        _, of_small = await table.acquire(table.find("small"))
        changed, of_middle = await table.acquire(table.find("middle"))
        other = replace(spec("middle"), options=EngineOptions(max_model_len=16))
        table.update([replace(spec("small"), aliases=("s",)), other, spec("large")], table.policy)
        assert table.find("s").model is not None
        assert table.find("middle").model is None
        assert changed in table.loaded  # for the request that uses it
        assert machine.closed == []
        of_middle()
        while changed in table.loaded:
            await asyncio.sleep(0)
        assert machine.closed == ["middle"]
        table.update([spec("large")], table.policy)
        with pytest.raises(ModelNotFound):
            table.find("small")
        of_small()
        await table.acquire(table.find("large"))
        assert machine.loads == ["small", "middle", "large"]

    run(test)


def test_close_ends_models_and_loads() -> None:
    async def test(table: ModelManager, machine: Machine) -> None:
        await table.acquire(table.find("middle"))
        machine.gate = asyncio.Event()
        waiting = asyncio.ensure_future(table.acquire(table.find("small")))
        while not machine.waiting:
            await asyncio.sleep(0)
        await table.close()
        assert machine.gaveup == ["small"]
        machine.failures["small"] = CorruptFile("its process was ended")
        machine.gate.set()
        with pytest.raises(CorruptFile):
            await waiting

    machine = run(test)
    assert "middle" in machine.closed


def test_an_adapter_that_had_room_has_it_after_its_model_was_unloaded(tmp_path: Path) -> None:
    """Its memory of before is not taken twice: of 100, 30 are the model's and 40 the adapter's."""
    file = tmp_path / "a.gguf"
    file.write_bytes(bytes(40))

    async def test(table: ModelManager, machine: Machine) -> None:
        entry = table.default
        for _ in range(3):
            (await table.acquire(entry))[1]()
            [adapter] = entry.adapters.named
            assert (adapter.failure, adapter.digest, table.left_bytes) == (None, "digest", 30)
            await table.unload_when_idle(entry)
            await settled(entry)

    run(test, spec("small", adapters={"a": str(file)}))


def test_an_adapter_that_is_not_there_is_not_any_name() -> None:
    specs = [spec(name) for name in ("base", "other")]
    manager = ModelManager(specs, Machine().launch, Policy(memory_bytes=100, any_name=True))
    assert manager.find("gpt-4").name == manager.find("gpt:4").name == "base"
    assert manager.find("other:latest").name == "base"
    for name in ("base:sql", "other:sql"):
        with pytest.raises(ModelNotFound, match=f"'{name}' is not served"):
            manager.find(name)
