"""A loaded model together with one of its adapters: a model of its own to every surface."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from headrace.engine.adapters import AdapterInfo
    from headrace.engine.client import EngineClient, EngineLimits, EngineStatus, LoadedModel
    from headrace.engine.request import EngineRequest, EventCallback, RequestHandle


class AdaptedEngine:
    """The engine of a model whose requests all use one adapter, named by its digest."""

    def __init__(self, engine: EngineClient, adapter: str) -> None:
        self._engine, self._adapter = engine, adapter

    @property
    def limits(self) -> EngineLimits:
        """As EngineClient."""
        return self._engine.limits

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """As EngineClient."""
        return self._engine.submit(replace(request, adapter=self._adapter), sink)

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """As EngineClient."""
        return self._engine.submit_later(replace(request, adapter=self._adapter), sink)

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """As EngineClient."""
        return self._engine.load_adapter(path, expected)

    def unload_adapter(self, digest: str) -> None:
        """As EngineClient."""
        self._engine.unload_adapter(digest)

    def status(self) -> EngineStatus:
        """As EngineClient."""
        return self._engine.status()

    def close(self) -> None:
        """Nothing: the engine belongs to the model without the adapter."""


def with_adapter(model: LoadedModel, name: str, digest: str, *, base: str = "") -> LoadedModel:
    """The model as `base:name` (by default its own name), whose answers the adapter changes."""
    base = base or model.name
    engine = AdaptedEngine(model.engine, digest)
    return replace(model, name=adapted_name(base, name), base=base, engine=engine, adapter=digest)


def adapted_name(model: str, adapter: str) -> str:
    """What clients call a model with an adapter."""
    return f"{model}:{adapter}"
