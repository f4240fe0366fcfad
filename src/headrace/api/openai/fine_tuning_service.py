"""The runner of a server's fine-tuning jobs, with what it needs of the served models."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette

from headrace.adapt.fine_tuning.runner import FineTuningRunner
from headrace.api.service import Service
from headrace.errors import InvalidRequest
from headrace.inference.adapted_engine import adapted_name
from headrace.weights.hub.resolver import resolve

MAX_HOURS = 24.0
"""Processor time that a job may take since it was last begun."""


@asynccontextmanager
async def computing_jobs(app: Starlette, service: Service) -> AsyncGenerator[None]:
    """Compute fine-tuning jobs until the block ends, where adapters may come over HTTP."""
    folder = service.settings.adapter_dir
    app.state.fine_tuning = None
    if folder is None or not service.keys.required:
        yield
        return
    app.state.fine_tuning = runner = FineTuningRunner(
        service.database,
        service.threads,
        folder.resolve(),
        base_of=lambda model: _base_of(service, model),
        load=lambda model, name, path: _load(service, model, name, path),
        unload=lambda model, name: _unload(service, model, name),
        cores=max((os.cpu_count() or 2) // 2, 1),
        hours=MAX_HOURS,
    )
    async with runner.serving():
        yield


def _base_of(service: Service, model: str) -> Path:
    entry = service.sources.find(model)
    base = resolve(entry.spec.model, offline=True)
    if not (base / "config.json").is_file():
        raise InvalidRequest(
            f"the weights of {model} are no folder of safetensors: adapters are trained on such, in float32"
            " or bfloat16; the adapter fits other formats of the same model",
            param="model",
        )
    return base


async def _load(service: Service, model: str, name: str, path: Path) -> str:
    entry = service.sources.find(model)
    if entry.model is None and entry.loading is None and not entry.fixed:
        entry.adapters.remember(name, path)  # it comes with its model
    else:
        await service.models.load_adapter(entry, name, path, in_place=True)
    return adapted_name(entry.name, name)


async def _unload(service: Service, model: str, name: str) -> None:
    entry = service.sources.find(model)
    await entry.adapters.unload(entry.model, name)
