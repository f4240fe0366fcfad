"""POST /api/embed and /api/embeddings: vectors of texts."""

from __future__ import annotations

import time
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.generation import respond_whole
from headrace.api.ollama.bodies import UsingBody
from headrace.api.ollama.model_names import ResolvedModel, use_model
from headrace.api.ollama.schema import OllamaEmbedding, OllamaEmbeddings
from headrace.api.openai.prompts import MAX_PROMPTS
from headrace.api.service import new_id
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning, Prepared
from headrace.inference.requests import EmbeddingRequest
from headrace.inference.result import ResultCollector
from headrace.tasks.embed import check_pooled

TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


class VectorBody(UsingBody):
    """What the bodies of both endpoints share. Options of sampling mean nothing here."""

    options: dict[str, Any] | None = None

    def warnings(self) -> list[ParameterWarning]:
        """As of every body, and one for each option."""
        idle = [f"options.{name[:80]}" for name in self.options or {}]
        found = [ParameterWarning(name, f"{name} has no effect on embeddings") for name in idle]
        return super().warnings() + found


class EmbedBody(VectorBody, kw_only=True):
    """The body of /api/embed."""

    input: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    def texts(self) -> list[str]:
        """The texts; none where only the model is to be loaded."""
        given: object = self.input or []
        texts = cast("list[object]", given) if isinstance(given, list) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise InvalidRequest("input is neither a text nor a list of texts", param="input")
        if len(texts) > MAX_PROMPTS:
            raise InvalidRequest(
                f"input has {len(texts):,} texts, at most {MAX_PROMPTS:,} are embedded at a time: split it",
                param="input",
            )
        return cast("list[str]", texts)


class EmbeddingsBody(VectorBody):
    """The body of /api/embeddings."""

    prompt: str | None = None


@Endpoint("POST", "/api/embed", body=EmbedBody, reply=OllamaEmbeddings)
async def embed(http: HttpRequest) -> Response:
    """Embed texts. One that is too long is refused, or cut where `truncate` says so, and `warnings` then
    too."""
    body = await read_checked(EmbedBody, http)
    texts = body.texts()
    used = await use_model(http, body)
    request = EmbeddingRequest(
        id=new_id("embed"),
        model=used.served_name,
        keep_alive_s=body.keep_alive_s,
        inputs=tuple(texts),
        dimensions=body.dimensions,
        truncate=bool(body.truncate),
    )
    return await respond_whole(http, request, EmbedReply(used))


class EmbedReply:
    """The format of the reply of /api/embed."""

    def __init__(self, used: ResolvedModel) -> None:
        self._used = used

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> OllamaEmbeddings:
        """The vectors, in the order of the texts."""
        return OllamaEmbeddings(
            model=self._used.name,
            embeddings=_vectors(result),
            total_duration=round((time.monotonic() - call.arrival_s) * 1e9),
            load_duration=round(self._used.load_s * 1e9),
            prompt_eval_count=sum(usage.prompt_tokens for usage in result.usages),
            warnings=call.warnings or UNSET,
        )


class EmbeddingReply:
    """The format of the reply of /api/embeddings."""

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> OllamaEmbedding:
        """The vector; none where there was no text."""
        vectors = _vectors(result)
        return OllamaEmbedding(vectors[0] if vectors else [], call.warnings or UNSET)


def _vectors(result: ResultCollector) -> list[list[float]]:
    found = [one.embedding.vectors for one in result.prompts if one.embedding is not None]
    check_pooled(found)
    return [vectors[0].tolist() for vectors in found]


@Endpoint("POST", "/api/embeddings", body=EmbeddingsBody, reply=OllamaEmbedding)
async def embeddings(http: HttpRequest) -> Response:
    """Embed one text; without one the model is only loaded."""
    body = await read_checked(EmbeddingsBody, http)
    used = await use_model(http, body)
    inputs = (body.prompt,) if body.prompt else ()
    request = EmbeddingRequest(
        id=new_id("embed"), model=used.served_name, keep_alive_s=body.keep_alive_s, inputs=inputs
    )
    return await respond_whole(http, request, EmbeddingReply())
