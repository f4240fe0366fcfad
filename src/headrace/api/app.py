"""The application: every endpoint over one loaded model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from headrace.api import chat_completions, completions, health, metrics, models, openapi
from headrace.api.anthropic import messages
from headrace.api.errors import install_error_handlers
from headrace.api.guard import Guard
from headrace.api.health import ProgressWatch
from headrace.api.responses import create, kept
from headrace.api.responses.desk import Desk
from headrace.api.service import Service
from headrace.config import Settings

if TYPE_CHECKING:
    from headrace.engine.load import LoadedModel


def create_app(model: LoadedModel | None, settings: Settings) -> FastAPI:
    """An ASGI application that serves `model`; None while it loads. The model stays the caller's to close."""
    service = Service(model, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        yield
        await app.state.desk.close()
        service.close()

    app = FastAPI(title="Headrace", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    app.state.service = service
    app.state.progress = ProgressWatch()
    app.state.desk = Desk(service)
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    install_error_handlers(app)
    for room in (chat_completions, completions, messages, create, kept, models, health, metrics, openapi):
        app.include_router(room.router)
    build = app.build_middleware_stack

    def guarded_stack() -> Guard:
        # Outside Starlette's own error middleware, so that a 500 has its request id as well.
        return Guard(build(), service)

    app.build_middleware_stack = guarded_stack  # type: ignore[method-assign]
    return app
