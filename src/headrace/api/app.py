"""The application: every endpoint over the served models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.types import ASGIApp

import headrace.api
from headrace.api.anthropic import messages
from headrace.api.batch_operations import BatchOperations, Operation
from headrace.api.dataset_indexing import DatasetIndexing
from headrace.api.http.endpoint import find_endpoints
from headrace.api.http.errors import install_error_handlers
from headrace.api.http.middleware import ServerMiddleware
from headrace.api.http.openapi import Document
from headrace.api.http.resuming import resuming
from headrace.api.ollama.pull import Pulls
from headrace.api.openai import chat_completions, completions, embeddings
from headrace.api.openai.fine_tuning_service import computing_jobs
from headrace.api.openai.responses import create
from headrace.api.service import Service
from headrace.api.tasks import entities, redact
from headrace.api.tools.own_tools import own_tools
from headrace.config.settings import Settings
from headrace.loading.options import EngineOptions
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


class App(Starlette):
    """Starlette within the middleware, so that a 500 of Starlette's own has its request id, too."""

    def build_middleware_stack(self) -> ASGIApp:
        """The middleware around all of Starlette's."""
        return ServerMiddleware(super().build_middleware_stack(), self.state.service)


OPERATIONS: Mapping[str, Operation] = {
    "/v1/chat/completions": chat_completions.complete_chat,
    "/v1/completions": completions.complete,
    "/v1/embeddings": embeddings.embed,
    "/v1/entities": entities.entities,
    "/v1/messages": messages.complete_message,
    "/v1/redact": redact.redact,
    "/v1/responses": create.make_response,
}
"""Endpoints that batches and EXPLAIN may name, without HTTP."""


def create_app(
    served: LoadedModel | ModelManager, settings: Settings, remote: Mapping[str, object] | None = None
) -> App:
    """An ASGI application that serves one loaded model, which stays the caller's to close, or a table.

    `remote` are entries of [models], of which those that name a provider or targets are served, too.
    """
    if not isinstance(served, ModelManager):
        spec = ModelSpec(name=served.name, model=served.name, options=EngineOptions())
        served = ModelManager.fixed(served, spec)
    service = Service(served, settings)
    service.serve_remote(settings, remote or {})
    service.check_guards(settings, [entry.spec for entry in served.entries])
    service.tools.own = partial(own_tools, service)
    endpoints = find_endpoints(headrace.api)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        if service.adapting is not None:
            await service.adapting.begin()
        app.state.batches = runner = BatchOperations(OPERATIONS, service).runner()
        indexing, fine_tuning = DatasetIndexing(service), computing_jobs(app, service)
        async with runner.serving(), resuming(app, service), indexing.serving(), fine_tuning:
            yield
        await service.tools.close()
        await service.responses.close()
        await service.idempotent.close()
        if service.adapting is not None:
            await service.adapting.close()
        if service.caching is not None:
            await service.caching.close()
        await service.remote.close()
        if service.journal is not None:
            await service.journal.close()
        service.close()

    # The router tries its routes one after the other: those that are called most come first.
    ordered = sorted(endpoints, key=lambda endpoint: endpoint.path not in OPERATIONS)
    app = App(routes=[endpoint.route() for endpoint in ordered], lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.pulls = Pulls()
    app.state.operations = OPERATIONS
    app.state.document = Document(endpoints)
    install_error_handlers(app)
    return app
