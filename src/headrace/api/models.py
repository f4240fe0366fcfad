"""GET /v1/models and /v1/models/{id}; POST /v1/models/{id}/load and /v1/models/{id}/unload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.call import call_of
from headrace.api.errors import json_response
from headrace.api.openapi import replies
from headrace.api.service import get_service
from headrace.api.wire import ModelCard, ModelList

if TYPE_CHECKING:
    from headrace.workers.entry import Entry

router = APIRouter()


def _card(entry: Entry) -> ModelCard:
    model = entry.model
    context = None if model is None else model.context_length
    return ModelCard(
        *(entry.name, entry.created_s if model is None else model.created_s, context, context),
        state=entry.state,
        aliases=entry.spec.aliases,
        memory_bytes=entry.reserved_bytes or None,
        in_use=entry.uses,
        restarts=entry.restarts,
        failure=entry.cause,
    )


@router.get("/v1/models", responses=replies(ModelList))
async def list_models(http: HttpRequest) -> Response:
    """The models served here, the default one first."""
    service = get_service(http)
    service.check_started()
    return json_response(ModelList([_card(entry) for entry in service.models.entries]))


@router.get("/v1/models/{name:path}", responses=replies(ModelCard))
async def get_model(http: HttpRequest, name: str) -> Response:
    """One model, or 404."""
    service = get_service(http)
    service.check_started()
    return json_response(_card(service.models.find(name)))


@router.post("/v1/models/{name:path}/load", responses=replies(ModelCard))
async def load_model(http: HttpRequest, name: str) -> Response:
    """Load a model now, also one that has failed; the reply comes when it is there."""
    service = get_service(http)
    entry = service.models.find(name)
    await service.models.forget_failure(entry)
    await service.use(call_of(http), name)
    return json_response(_card(entry))


@router.post("/v1/models/{name:path}/unload", responses=replies(ModelCard))
async def unload_model(http: HttpRequest, name: str) -> Response:
    """Unload a model: at once, or when the last request that uses it has ended."""
    service = get_service(http)
    entry = service.models.find(name)
    await service.models.unload_when_idle(entry)
    return json_response(_card(entry))
