"""POST /api/embed and /api/embeddings: vectors of texts."""

from __future__ import annotations

import time
from typing import Annotated, Any, cast

from fastapi import APIRouter
from msgspec import UNSET
from msgspec.structs import replace
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.errors import json_response
from headrace.api.http.openapi import replies
from headrace.api.ollama.bodies import UsingBody
from headrace.api.ollama.model_names import ResolvedModel, use_model
from headrace.api.ollama.schema import OllamaEmbedding, OllamaEmbeddings
from headrace.api.openai.embeddings import MAX_INPUTS, Embeddings, check_embeds, computed, embed_requests
from headrace.api.openai.parameters import json_schema, read_parameters
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import CLIENT_GONE, get_service, new_id
from headrace.engine.request import EngineRequest
from headrace.errors import InvalidRequest

router = APIRouter()

TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


class VectorBody(UsingBody):
    """What the bodies of both endpoints share. Options of sampling mean nothing here."""

    options: dict[str, Any] | None = None

    def warnings(self) -> list[ParameterWarning]:
        """As of every body, and one for each option."""
        idle = [f"options.{name[:80]}" for name in self.options or {}]
        found = [ParameterWarning(name, f"{name} has no effect on embeddings") for name in idle]
        return super().warnings() + found


class EmbedBody(VectorBody):
    """The body of /api/embed."""

    input: Annotated[Any, WithJsonSchema(TEXTS)]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None

    def texts(self) -> list[str]:
        """The texts; none where only the model is to be loaded."""
        given: object = self.input or []
        texts = cast("list[object]", given) if isinstance(given, list) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise InvalidRequest("input is neither a text nor a list of texts", param="input")
        if len(texts) > MAX_INPUTS:
            raise InvalidRequest(
                f"input has {len(texts):,} texts, at most {MAX_INPUTS:,} are embedded at a time: split it",
                param="input",
            )
        return cast("list[str]", texts)


class EmbeddingsBody(VectorBody):
    """The body of /api/embeddings."""

    prompt: str | None = None


@router.post("/api/embed", openapi_extra=json_schema(EmbedBody), responses=replies(OllamaEmbeddings))
async def embed(http: HttpRequest) -> Response:
    """Embed texts. One that is too long is refused, or cut where `truncate` says so, and `warnings` then
    too."""
    body, warnings = await read_parameters(EmbedBody, http)
    texts = body.texts()
    used = await use_model(http, body)
    cut: list[ParameterWarning] = []

    def make() -> list[EngineRequest]:
        requests = embed_requests(used.model, texts, new_id("embed"), body.dimensions)
        return [_cut(used, request, cut) for request in requests] if body.truncate else requests

    check_embeds(get_service(http), used.model)
    found = await computed(http, used.model, make) if texts else Embeddings(0)
    if found is None:
        return Response(status_code=CLIENT_GONE)
    return json_response(
        OllamaEmbeddings(
            model=used.name,
            embeddings=[vector.vectors[0].tolist() for vector in found.each()],
            total_duration=round((time.monotonic() - call_of(http).arrival_s) * 1e9),
            load_duration=round(used.load_s * 1e9),
            prompt_eval_count=found.prompt_tokens,
            warnings=[*warnings, *used.warnings, *cut] or UNSET,
        )
    )


def _cut(used: ResolvedModel, request: EngineRequest, warnings: list[ParameterWarning]) -> EngineRequest:
    """The request as far as the model's context goes; the mark that ends a text stays at its end."""
    prompt, limit = request.prompt, used.model.context_length
    if len(prompt) <= limit:
        return request
    index = request.request_id.rpartition("-")[2]
    message = f"text {index} has {len(prompt):,} tokens and was cut to the model's {limit:,}"
    warnings.append(ParameterWarning("truncate", message))
    last = prompt[-1:] if prompt[-1] in used.model.tokenizer.pieces.special_ids else ()
    return replace(request, prompt=prompt[: limit - len(last)] + last)


@router.post("/api/embeddings", openapi_extra=json_schema(EmbeddingsBody), responses=replies(OllamaEmbedding))
async def embeddings(http: HttpRequest) -> Response:
    """Embed one text; without one the model is only loaded."""
    body, warnings = await read_parameters(EmbeddingsBody, http)
    used = await use_model(http, body)
    check_embeds(get_service(http), used.model)
    prompt = body.prompt
    if not prompt:
        return json_response(OllamaEmbedding([], [*warnings, *used.warnings] or UNSET))
    found = await computed(
        http, used.model, lambda: embed_requests(used.model, [prompt], new_id("embed"), None)
    )
    if found is None:
        return Response(status_code=CLIENT_GONE)
    vector = found.each()[0].vectors[0].tolist()
    return json_response(OllamaEmbedding(vector, [*warnings, *used.warnings] or UNSET))
