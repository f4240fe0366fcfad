"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import msgspec
from fastapi import APIRouter
from msgspec.structs import replace
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.disconnect import wait_for_end
from headrace.api.http.errors import json_response
from headrace.api.http.openapi import replies
from headrace.api.openai.parameters import RequestBody, check_characters, json_schema, read_parameters
from headrace.api.openai.schema import EmbeddingList, EmbeddingObject, EmbeddingUsage
from headrace.api.service import CLIENT_GONE, Service, get_service, new_id
from headrace.engine.request import Embedding, EmbedParams, EngineEvent, EngineRequest, RequestFinished
from headrace.errors import InvalidRequest

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

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

Input = str | Sequence[int]


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

    def inputs(self) -> list[Input]:
        """The texts, each as such or as token ids."""
        given: object = self.input
        if isinstance(given, str):
            return [given]
        entries = _list(given)
        if isinstance(entries[0], int):
            return [cast("list[int]", entries)]
        if len(entries) > MAX_INPUTS:
            raise InvalidRequest(
                f"input has {len(entries):,} texts, at most {MAX_INPUTS:,} are embedded at a time: split it",
                param="input",
            )
        return [entry if isinstance(entry, str) else cast("list[int]", _list(entry)) for entry in entries]


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            "input is a text, token ids, or a list of texts or of lists of ids; none may be empty",
            param="input",
        )
    return cast("list[object]", value)


class Embeddings:
    """Collects the vectors of one reply and what they cost."""

    def __init__(self, count: int) -> None:
        self.vectors: list[Embedding | None] = [None] * count
        self.prompt_tokens = 0

    def take(self, index: int, events: list[EngineEvent]) -> None:
        """The events of the text at `index`."""
        for event in events:
            if isinstance(event, Embedding):
                self.vectors[index] = event
            elif isinstance(event, RequestFinished):
                self.prompt_tokens += event.usage.prompt_tokens

    def each(self) -> list[Embedding]:
        """All of them, in the order of the texts, of a reply that has ended well."""
        return [vector for vector in self.vectors if vector is not None]


def check_embeds(service: Service, model: LoadedModel) -> None:
    """InvalidRequest, with the names of models that can, where a model makes no embeddings."""
    if model.engine.limits.embedding_size:
        return
    able = [
        entry.name
        for entry in service.models.entries
        if entry.model is not None and entry.model.engine.limits.embedding_size
    ]
    unloaded = [entry.name for entry in service.models.entries if entry.model is None]
    others = f"of the loaded models, {', '.join(able)} can" if able else "no loaded model can"
    if unloaded:
        others += f"; not loaded: {', '.join(unloaded[:10])}"
    raise InvalidRequest(
        f"{model.name} generates text and makes no embeddings; {others}: name an encoder such as BERT",
        param="model",
    )


def embed_requests(
    model: LoadedModel, inputs: Sequence[Input], request_id: str, dimensions: int | None
) -> list[EngineRequest]:
    """An engine request for each text. Tokenizes: not for the event loop."""
    return [
        EngineRequest(
            prompt=_ids(model, text), request_id=f"{request_id}-{index}", embed=EmbedParams(dimensions)
        )
        for index, text in enumerate(inputs)
    ]


def _ids(model: LoadedModel, text: Input) -> tuple[int, ...]:
    if not isinstance(text, str):
        if not all(type(token) is int for token in text):
            raise InvalidRequest("input: token ids must be integers", param="input")
        return tuple(text)
    check_characters(text, model.context_length, "input")
    return tuple(model.tokenizer.encode_prompt(text))


async def computed(
    http: HttpRequest, model: LoadedModel, make: Callable[[], list[EngineRequest]]
) -> Embeddings | None:
    """The vectors of the requests that `make` makes; None where the client left."""
    service = get_service(http)
    requests = await service.run_in_thread(make)
    found = Embeddings(len(requests))
    generation = await service.start(model, requests, found.take, call_of(http))
    return found if await wait_for_end(http, generation) else None


@router.post("/v1/embeddings", openapi_extra=json_schema(EmbeddingBody), responses=replies(EmbeddingList))
async def create_embeddings(http: HttpRequest) -> Response:
    """Vectors of texts. Each has length 1 where the model says so or says nothing; no text is ever cut."""
    service, call = get_service(http), call_of(http)
    body, warnings = await read_parameters(EmbeddingBody, http)
    inputs = body.inputs()
    model = await service.use(call, body.model)
    check_embeds(service, model)

    def make() -> list[EngineRequest]:
        requests = embed_requests(model, inputs, new_id("embd"), body.dimensions)
        return [replace(r, priority=body.priority, deadline_s=body.deadline_s) for r in requests]

    found = await computed(http, model, make)
    if found is None:
        return Response(status_code=CLIENT_GONE)
    base64_wanted = body.encoding_format == "base64"
    return json_response(
        EmbeddingList(
            data=[
                EmbeddingObject(index, _written(vector, base64_wanted))
                for index, vector in enumerate(found.each())
            ],
            model=model.name,
            usage=EmbeddingUsage(found.prompt_tokens, found.prompt_tokens),
            warnings=warnings or msgspec.UNSET,
        )
    )


def _written(vector: Embedding, as_base64: bool) -> str | list[float]:
    return base64.b64encode(vector.data).decode() if as_base64 else vector.vectors[0].tolist()
