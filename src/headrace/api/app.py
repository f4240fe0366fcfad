"""The application: every endpoint over the served models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI

from headrace.api.admin import health, metrics
from headrace.api.anthropic import batches as message_batches
from headrace.api.anthropic import messages
from headrace.api.http import openapi
from headrace.api.http.errors import install_error_handlers
from headrace.api.http.middleware import ServerMiddleware
from headrace.api.ollama import routes as ollama
from headrace.api.ollama.pull import Pulls
from headrace.api.openai import (
    batches,
    chat_completions,
    completions,
    embeddings,
    files,
    models,
    moderations,
    tokenize,
)
from headrace.api.openai.batch_runner import BatchRunner, Operation
from headrace.api.openai.responses import create
from headrace.api.openai.responses import retrieve as kept
from headrace.api.openai.responses.response_manager import ResponseManager
from headrace.api.service import Service
from headrace.config.settings import Settings
from headrace.loading.options import EngineOptions
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

ROUTERS = (
    *(chat_completions, completions, messages, message_batches, create, kept, ollama, files, batches),
    *(embeddings, tokenize, moderations, models, health, metrics, openapi),
)


def operations(manager: ResponseManager) -> Mapping[str, Operation]:
    """Endpoints that batches may name, without HTTP."""
    return {
        "/v1/chat/completions": chat_completions.complete_chat,
        "/v1/completions": completions.complete,
        "/v1/embeddings": embeddings.embed,
        "/v1/messages": messages.complete_message,
        "/v1/responses": partial(create.make_response, manager=manager),
    }


def create_app(served: LoadedModel | ModelManager, settings: Settings) -> FastAPI:
    """An ASGI application that serves one loaded model, which stays the caller's to close, or a table."""
    if not isinstance(served, ModelManager):
        spec = ModelSpec(name=served.name, model=served.name, options=EngineOptions())
        served = ModelManager.fixed(served, spec)
    service = Service(served, settings)
    manager = ResponseManager(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.batches = runner = BatchRunner(operations(manager), service)
        async with runner.serving():
            yield
        await manager.close()
        service.close()

    app = FastAPI(title="Headrace", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    app.state.service = service
    app.state.pulls = Pulls()
    app.state.responses = manager
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    install_error_handlers(app)
    for module in ROUTERS:
        app.include_router(module.router)
    build = app.build_middleware_stack

    def guarded_stack() -> ServerMiddleware:
        # Outside Starlette's own error middleware, so that a 500 has its request id as well.
        return ServerMiddleware(build(), service)

    app.build_middleware_stack = guarded_stack  # type: ignore[method-assign]
    return app
