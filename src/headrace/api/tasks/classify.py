"""POST /v1/classify and /classify: labels of texts, in vLLM's shape; labels of the request's own, too."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, loose
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import Endpoint
from headrace.api.openai.schema import EmbeddingUsage
from headrace.api.service import Service, new_id, now_s
from headrace.api.tasks.texts import TEXTS, read_texts, reply_to, usage_of
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.tasks.classify import Classification, classify
from headrace.tasks.task_limits import MAX_LABELS
from headrace.tasks.zero_shot import TEMPLATE, zero_shot

_LABELS = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "maxItems": MAX_LABELS,
    "description": "Labels of your own, for a model of natural language inference, an embedder or a decoder.",
}


class ClassifyBody(RequestBody, kw_only=True):
    """Texts to classify; with `labels` among these, otherwise among the model's own."""

    input: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    labels: Annotated[Any, loose(_LABELS)] = None
    hypothesis_template: str = TEMPLATE
    multi_label: bool = False
    truncate: bool = False


class TextLabel(Struct, frozen=True, kw_only=True):
    """The likeliest label of a text; `probs` are those of all `labels`, in the model's order or the
    request's."""

    index: int
    label: str
    probs: list[float]
    num_classes: int
    labels: list[str]


class ClassifyReply(Struct, frozen=True, kw_only=True):
    """The labels, in the order of the texts."""

    id: str
    created: int
    model: str
    data: list[TextLabel]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


async def _answer(body: ClassifyBody, call: HttpCall, service: Service) -> ClassifyReply:
    texts, labels = read_texts(body.input, "input"), _labels(body.labels)
    if labels is None:
        found = await classify(service.runner, body.model, texts, call, truncate=body.truncate)
    else:
        found = await zero_shot(
            service.runner,
            body.model,
            texts,
            labels,
            call,
            hypothesis_template=body.hypothesis_template,
            multi_label=body.multi_label,
            truncate=body.truncate,
        )
    return ClassifyReply(
        id=new_id("classify"),
        created=now_s(),
        model=call.model,
        data=[_written(index, one) for index, one in enumerate(found)],
        usage=usage_of(call),
        warnings=call.warnings or UNSET,
    )


def _written(index: int, one: Classification) -> TextLabel:
    return TextLabel(
        index=index,
        label=one.label,
        probs=list(one.scores),
        num_classes=len(one.labels),
        labels=list(one.labels),
    )


def _labels(given: object) -> list[str] | None:
    if given is None:
        return None
    entries = cast("list[object]", given) if isinstance(given, list) else [None]
    if not all(isinstance(entry, str) for entry in entries):
        raise InvalidRequest("labels is a list of texts", param="labels", code="invalid_type")
    return cast("list[str]", entries)


@Endpoint("POST", "/v1/classify", body=ClassifyBody, reply=ClassifyReply)
async def classify_texts(http: HttpRequest) -> Response:
    """Labels of texts. Without `model`, the first served model that can."""
    return await reply_to(http, ClassifyBody, _answer)


@Endpoint("POST", "/classify", body=ClassifyBody, reply=ClassifyReply, hidden=True)
async def classify_unversioned(http: HttpRequest) -> Response:
    """As /v1/classify."""
    return await reply_to(http, ClassifyBody, _answer)
