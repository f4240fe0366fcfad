"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from fastapi import APIRouter
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import HttpCall
from headrace.api.http.generation import answer, respond_whole
from headrace.api.http.openapi import replies
from headrace.api.openai.parameters import RequestBody, checked_body, json_schema, read_parameters
from headrace.api.openai.schema import EmbeddingList, EmbeddingObject, EmbeddingUsage
from headrace.api.service import Service, new_id
from headrace.engine.request import Embedding
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.requests import EmbeddingRequest, Prompt
from headrace.inference.result import ResultCollector

router = APIRouter()

MAX_INPUTS = 2048
INPUT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class EmbeddingBody(RequestBody):
    """The body of a request for embeddings."""

    no_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {"user": ()}
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    # Checked by `inputs`, which looks at tokens only when there are not too many of them.
    input: Annotated[Any, WithJsonSchema(INPUT_SCHEMA)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def inputs(self) -> tuple[Prompt, ...]:
        """The texts, each as such or as token ids."""
        given: object = self.input
        if isinstance(given, str):
            return (given,)
        entries = _list(given)
        if isinstance(entries[0], int):
            return (_ids(entries),)
        if len(entries) > MAX_INPUTS:
            raise InvalidRequest(
                f"input has {len(entries):,} texts, at most {MAX_INPUTS:,} are embedded at a time: split it",
                param="input",
            )
        return tuple(entry if isinstance(entry, str) else _ids(_list(entry)) for entry in entries)

    def request(self, reply_id: str) -> EmbeddingRequest:
        """The request that this body stands for."""
        return EmbeddingRequest(
            id=reply_id,
            model=self.model,
            priority=self.priority,
            deadline_s=self.deadline_s,
            inputs=self.inputs(),
            dimensions=self.dimensions,
        )

    def reply(self) -> EmbeddingReply:
        """The format of the reply."""
        return EmbeddingReply(as_base64=self.encoding_format == "base64")


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            "input is a text, token ids, or a list of texts or of lists of ids; none may be empty",
            param="input",
        )
    return cast("list[object]", value)


def _ids(entries: list[object]) -> tuple[int, ...]:
    if not all(type(token) is int for token in entries):
        raise InvalidRequest("input: token ids must be integers", param="input")
    return tuple(cast("list[int]", entries))


class EmbeddingReply:
    """The format of the reply."""

    def __init__(self, *, as_base64: bool) -> None:
        self._as_base64 = as_base64

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> EmbeddingList:
        """The vectors, in the order of the inputs."""
        vectors = [one.embedding for one in result.prompts if one.embedding is not None]
        tokens = sum(usage.prompt_tokens for usage in result.usages)
        return EmbeddingList(
            data=[EmbeddingObject(index, self._written(vector)) for index, vector in enumerate(vectors)],
            model=prepared.model,
            usage=EmbeddingUsage(tokens, tokens),
            warnings=call.warnings or msgspec.UNSET,
        )

    def _written(self, vector: Embedding) -> str | list[float]:
        return base64.b64encode(vector.data).decode() if self._as_base64 else vector.vectors[0].tolist()


@router.post("/v1/embeddings", openapi_extra=json_schema(EmbeddingBody), responses=replies(EmbeddingList))
async def create_embeddings(http: HttpRequest) -> Response:
    """Vectors of texts. Each has length 1 unless the model says otherwise; no text is ever cut."""
    body = await read_parameters(EmbeddingBody, http)
    return await respond_whole(http, body.request(new_id("embd")), body.reply())


async def embed(data: bytes, call: HttpCall, service: Service) -> msgspec.Struct:
    """The endpoint without HTTP, for batches."""
    body = checked_body(EmbeddingBody, data, call)
    return await answer(service, body.request(new_id("embd")), body.reply(), call)
