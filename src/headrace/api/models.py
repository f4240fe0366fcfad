"""GET /v1/models and /v1/models/{id}."""

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
    from headrace.engine.load import LoadedModel

router = APIRouter()


def _card(model: LoadedModel) -> ModelCard:
    return ModelCard(model.name, model.created_s, model.context_length, model.context_length)


@router.get("/v1/models", responses=replies(ModelList))
async def list_models(http: HttpRequest) -> Response:
    """The models served here."""
    return json_response(ModelList([_card(get_service(http).model)]))


@router.get("/v1/models/{name:path}", responses=replies(ModelCard))
async def get_model(http: HttpRequest, name: str) -> Response:
    """One model, or 404."""
    return json_response(_card(await get_service(http).use(call_of(http), name)))
