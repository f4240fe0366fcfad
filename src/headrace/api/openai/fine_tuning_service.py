"""The runner of a server's fine-tuning jobs, with what it needs of the served models."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from headrace.adapt.fine_tuning.runner import FineTuningRunner
from headrace.api.service import Service

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
        base_of=service.weights_of,
        load=service.load_adapter,
        unload=service.unload_adapter,
        cores=max((os.cpu_count() or 2) // 2, 1),
        hours=MAX_HOURS,
    )
    async with runner.serving():
        yield
