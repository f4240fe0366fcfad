"""Runs `headrace mcp serve`: the tools of a server on stdin and stdout, without HTTP."""

from __future__ import annotations

import asyncio
import importlib
from functools import partial

from msgspec.structs import replace

from headrace.api.service import Service
from headrace.api.tools.own_tools import own_tools
from headrace.cli.fetching import fetch
from headrace.cli.serve_settings import policy_of
from headrace.config.settings import Settings
from headrace.config.sources import model_entries
from headrace.config.stderr_log import log_to_stderr
from headrace.inference.call_context import CallContext, new_request_id
from headrace.loading.free_memory import free_memory_bytes
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec, read_specs
from headrace.workers.worker_loader import WorkerLoader


def run(model: str | None, settings: Settings) -> None:
    """Serve until stdin ends. Models load with their first use."""
    log_to_stderr()

    def launch(spec: ModelSpec) -> WorkerLoader:
        fetch(spec.model, settings)
        return WorkerLoader(spec)

    specs = read_specs([] if model is None else [model], settings)
    settings = replace(settings, journal=None)  # which belongs to `headrace serve`
    models = ModelManager(specs, launch, policy_of(settings, free_memory_bytes()))
    service = Service(models, settings)
    service.gate.starting = False
    service.tools.own = partial(own_tools, service)
    service.serve_remote(settings, model_entries())
    asyncio.run(_serve(service))


async def _serve(service: Service) -> None:
    server = importlib.import_module("headrace.tools.mcp.server")
    account = service.keys.everybody

    def new_call(context: object) -> CallContext:
        return CallContext(request_id=new_request_id(), account=account)

    try:
        await server.serve_stdio(server.mcp_server(service.tools, new_call))
    finally:
        await service.tools.close()
        await service.remote.close()
        await service.models.close()
        service.close()
