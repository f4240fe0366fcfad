"""GET /v1/models and /v1/models/{id}: in OpenAI's shape, or Anthropic's where its version is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.anthropic.errors import MESSAGES_PATH
from headrace.api.anthropic.models import anthropic_model, anthropic_models
from headrace.api.anthropic.wire import AnthropicModel, AnthropicModelList
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


def _for_anthropic(http: HttpRequest) -> bool:
    return call_of(http).surface == MESSAGES_PATH


@router.get("/v1/models", responses=replies(ModelList, other=AnthropicModelList))
async def list_models(http: HttpRequest) -> Response:
    """The models served here; with the header `anthropic-version` in Anthropic's shape, also of errors."""
    models = [get_service(http).model]
    if _for_anthropic(http):
        return json_response(anthropic_models(models, http.query_params))
    return json_response(ModelList([_card(model) for model in models]))


@router.get("/v1/models/{name:path}", responses=replies(ModelCard, other=AnthropicModel))
async def get_model(http: HttpRequest, name: str) -> Response:
    """One model, or 404; with the header `anthropic-version` in Anthropic's shape, also of errors."""
    model = await get_service(http).use(call_of(http), name)
    return json_response(anthropic_model(model) if _for_anthropic(http) else _card(model))
