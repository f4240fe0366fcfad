"""POST /api/embed and /api/embeddings: refused while no model here embeds."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.ollama.bodies import ModelBody
from headrace.api.ollama.catalog import find_entry
from headrace.api.ollama.wire import OllamaEmbedding, OllamaEmbeddings
from headrace.api.openapi import replies
from headrace.api.parameters import json_schema, read_parameters
from headrace.api.service import get_service
from headrace.errors import InvalidRequest

router = APIRouter()

TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


class EmbedBody(ModelBody):
    """The body of /api/embed."""

    input: Annotated[Any, WithJsonSchema(TEXTS)]
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class EmbeddingsBody(ModelBody):
    """The body of /api/embeddings."""

    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


@router.post("/api/embed", openapi_extra=json_schema(EmbedBody), responses=replies(OllamaEmbeddings))
async def embed(http: HttpRequest) -> Response:
    """Embed texts. No model of this version does: 400 until one does."""
    body, _ = await read_parameters(EmbedBody, http)
    raise await _refusal(http, body.model)


@router.post("/api/embeddings", openapi_extra=json_schema(EmbeddingsBody), responses=replies(OllamaEmbedding))
async def embeddings(http: HttpRequest) -> Response:
    """Embed one text. No model of this version does: 400 until one does."""
    body, _ = await read_parameters(EmbeddingsBody, http)
    raise await _refusal(http, body.model)


async def _refusal(http: HttpRequest, model: str) -> InvalidRequest:
    """The error for a model that is here; raises ModelNotFound for one that is not."""
    service = get_service(http)
    entry = await service.off_loop(lambda: find_entry(service, model))
    return InvalidRequest(
        f"{entry.name} generates text and makes no embeddings: encoders are not supported yet", param="model"
    )
