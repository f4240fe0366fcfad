"""POST /classify and /v1/classify: labels of texts, in vLLM's shape; the model's own or the request's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.schema import EmbeddingUsage
from headrace.api.service import Service, get_service, new_id, now_s
from headrace.api.tasks.task_reply import TEXTS, texts_of, usage_of
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.tasks.classify import classify
from headrace.tasks.label_scores import Classification
from headrace.tasks.zero_shot import TEMPLATE, zero_shot


class ClassifyBody(RequestBody, kw_only=True):
    """Texts to classify: with `labels` of your own by a model of entailment, an embedder or a decoder."""

    input: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    labels: list[str] | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None
    truncate: bool | None = None

    def warnings(self) -> list[ParameterWarning]:
        """Refuses what goes with labels only."""
        for name in ("hypothesis_template", "multi_label"):
            if self.labels is None and getattr(self, name) is not None:
                raise InvalidRequest(f"{name} needs labels: send both or none", param=name)
        return []


class ClassifiedText(Struct, frozen=True):
    """The likeliest label of a text; `probs` has one number for each of `labels`."""

    index: int
    label: str
    probs: tuple[float, ...]
    num_classes: int
    labels: tuple[str, ...]


class ClassifyReply(Struct, frozen=True):
    """The texts, in their order."""

    id: str
    created: int
    model: str
    data: list[ClassifiedText]
    usage: EmbeddingUsage
    object: str = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


async def found_in(
    body: ClassifyBody, texts: Sequence[str], service: Service, call: CallContext
) -> list[Classification]:
    """The labels of the texts of a body."""
    truncate = bool(body.truncate)
    if body.labels is not None:
        return await zero_shot(
            service.runner,
            body.model,
            texts,
            body.labels,
            call,
            hypothesis_template=TEMPLATE if body.hypothesis_template is None else body.hypothesis_template,
            multi_label=bool(body.multi_label),
            truncate=truncate,
        )
    return await classify(service.runner, body.model, texts, call, truncate=truncate)


async def _classified(http: HttpRequest) -> Response:
    body = await read_checked(ClassifyBody, http)
    call = call_of(http)
    found = await done(http, found_in(body, texts_of(body.input, "input"), get_service(http), call))
    data = [
        ClassifiedText(index, one.label, one.scores, len(one.labels), one.labels)
        for index, one in enumerate(found)
    ]
    reply = ClassifyReply(
        new_id("classify"), now_s(), call.model, data, usage_of(call), warnings=call.warnings or UNSET
    )
    return json_response(reply)


@Endpoint("POST", "/v1/classify", body=ClassifyBody, reply=ClassifyReply)
async def classify_v1(http: HttpRequest) -> Response:
    """The labels of texts with their probabilities."""
    return await _classified(http)


@Endpoint("POST", "/classify", body=ClassifyBody, reply=ClassifyReply)
async def classify_unversioned(http: HttpRequest) -> Response:
    """As /v1/classify."""
    return await _classified(http)
