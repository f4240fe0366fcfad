"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.errors import json_response
from headrace.api.openapi import replies
from headrace.api.service import Service, get_service
from headrace.api.wire import ModelCard, ModelList

router = APIRouter()


def _card(service: Service) -> ModelCard:
    model = service.model
    return ModelCard(model.name, model.created_s, model.context_length, model.context_length)


@router.get("/v1/models", responses=replies(ModelList))
async def list_models(http: HttpRequest) -> Response:
    """The models served here."""
    return json_response(ModelList([_card(get_service(http))]))


@router.get("/v1/models/{name:path}", responses=replies(ModelCard))
async def get_model(http: HttpRequest, name: str) -> Response:
    """One model, or 404."""
    service = get_service(http)
    service.require_model(name)
    return json_response(_card(service))
