"""POST /v1/entities."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import checked_body, loose, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.embedding_schema import EmbeddingUsage
from headrace.api.service import Service, get_service
from headrace.api.tasks.task_body import TaskBody
from headrace.api.tasks.task_reply import TEXTS, texts_of, usage_of
from headrace.inference.events import ParameterWarning
from headrace.tasks.entities import Entity, extract_entities
from headrace.tasks.task_limits import MAX_LABELS
from headrace.tasks.token_labels import Aggregation

_LABELS = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "maxItems": MAX_LABELS,
    "description": "What to find, in your own words; a model that was trained for certain labels needs none.",
}
_THRESHOLD = {
    "type": "number",
    "exclusiveMinimum": 0,
    "exclusiveMaximum": 1,
    "description": "Every score exceeds it; 0.5 by default.",
}


class EntitiesBody(TaskBody, kw_only=True):
    """The body of a request for entities. `window` and `stride` are in tokens."""

    input: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    labels: Annotated[list[str] | None, loose(_LABELS)] = None
    threshold: Annotated[float | None, loose(_THRESHOLD)] = None
    flat_ner: bool = True
    multi_label: bool = False
    truncate: bool = False
    window: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    stride: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    aggregation: Aggregation | None = None


class FoundEntity(Struct, frozen=True):
    """`text` is that of the characters [start, end) of the input, counted in code points."""

    text: str
    label: str
    start: int
    end: int
    score: float


class TextEntities(Struct, frozen=True):
    """The entities of one text, in order."""

    index: int
    entities: list[FoundEntity]


class EntityList(Struct, frozen=True):
    """The entities of a request's texts, in their order."""

    data: list[TextEntities]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


@Endpoint("POST", "/v1/entities", body=EntitiesBody, reply=EntityList)
async def find_entities(http: HttpRequest) -> Response:
    """Entities in texts, by labels of your own. Without `model`, the first served model that finds them."""
    body = await read_checked(EntitiesBody, http)
    return json_response(await done(http, _found(body, call_of(http), get_service(http))))


async def entities(data: bytes, call: HttpCall, service: Service) -> msgspec.Struct | msgspec.Raw:
    """The endpoint without HTTP, for batches."""
    return await _found(checked_body(EntitiesBody, data, call), call, service)


async def _found(body: EntitiesBody, call: HttpCall, service: Service) -> Raw:
    found = await extract_entities(
        body.runner(service),
        body.model,
        texts_of(body.input, "input"),
        body.labels,
        call,
        threshold=body.threshold,
        flat_ner=body.flat_ner,
        multi_label=body.multi_label,
        truncate=body.truncate,
        window=body.window,
        stride=body.stride,
        aggregation=body.aggregation,
    )

    def write() -> bytes:
        data = [TextEntities(index, list(map(_written, several))) for index, several in enumerate(found)]
        reply = EntityList(data, call.model, usage_of(call), warnings=call.warnings or UNSET)
        return msgspec.json.encode(reply)

    return Raw(await service.search_in_thread(write))


def _written(entity: Entity) -> FoundEntity:
    return FoundEntity(entity.text, entity.label, entity.start, entity.end, entity.score)
