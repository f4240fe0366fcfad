"""POST /v1/redact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, checked_body, loose, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service
from headrace.api.tasks.task_reply import TEXTS, refuse_twins, texts_of
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.tasks.entities import Entity
from headrace.tasks.pii.analyzer import THRESHOLD, Analyzer
from headrace.tasks.pii.model_entities import asked_model, model_findings
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.task_limits import check_searched

_OPERATORS = {
    "type": "object",
    "description": 'By entity, or "DEFAULT": replace, redact, mask, hash or keep, or an object of fields.',
    "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "object"}]},
}


class RedactBody(RequestBody, kw_only=True):
    """The body of a request that replaces personal data. Without `model`, by patterns only, unless `entities`
    names some that only models find: then the first model that finds any is asked, too. `labels` is another
    name of `entities`, as /v1/entities has it."""

    input: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    entities: Annotated[list[str], Meta(max_length=1000)] | None = None
    labels: Annotated[list[str], Meta(max_length=1000)] | None = None
    operators: Annotated[dict[str, Any] | None, loose(_OPERATORS)] = None
    threshold: Annotated[float, Meta(ge=0, le=1)] = THRESHOLD
    allow_list: Annotated[list[str], Meta(max_length=10_000)] | None = None
    vault: dict[str, str] | None = None
    return_vault: bool = False

    @property
    def wanted(self) -> list[str] | None:
        """The labels to look for, None: all; raises InvalidRequest where both names have some."""
        refuse_twins(self, ("entities", "labels"))
        return self.labels if self.entities is None else self.entities

    def redactor(self, *, with_model: bool) -> Redactor:
        """What replaces it; raises InvalidRequest."""
        try:
            analyzer = Analyzer(
                self.wanted,
                threshold=self.threshold,
                allow=self.allow_list or (),
                with_model=with_model,
            )
        except InvalidRequest as error:
            if self.labels is not None and error.param == "entities":
                error.param = "labels"
            raise
        return Redactor(analyzer, cast("Mapping[str, Any] | None", self.operators), self.vault)


class RedactedEntity(Struct, frozen=True):
    """`text` is that of the characters [start, end) of the input, counted in code points."""

    text: str
    label: str
    start: int
    end: int
    score: float


class RedactedText(Struct, frozen=True):
    """A text without its entities."""

    index: int
    text: str
    entities: list[RedactedEntity]


class RedactedList(Struct, frozen=True):
    """The redacted texts of a request, in their order; with `return_vault` what placeholders stand for."""

    data: list[RedactedText]
    model: str | None = None
    object: Literal["list"] = "list"
    vault: dict[str, str] | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET


@Endpoint("POST", "/v1/redact", body=RedactBody, reply=RedactedList)
async def redact_personal_data(http: HttpRequest) -> Response:
    """Texts with placeholders, masks or hashes in the place of personal data."""
    body = await read_checked(RedactBody, http)
    return json_response(await done(http, _redacted(body, call_of(http), get_service(http))))


async def redact(data: bytes, call: HttpCall, service: Service) -> msgspec.Struct | msgspec.Raw:
    """The endpoint without HTTP, for batches."""
    return await _redacted(checked_body(RedactBody, data, call), call, service)


async def _redacted(body: RedactBody, call: CallContext, service: Service) -> Raw:
    texts = texts_of(body.input, "input")
    check_searched(texts, "input")
    model = asked_model(service.runner, body.model, body.wanted)
    redactor = await service.search_in_thread(lambda: body.redactor(with_model=model is not None))
    more: Sequence[Sequence[RecognizerResult]] = [()] * len(texts)
    if model is not None:
        threshold = redactor.analyzer.threshold
        more = await model_findings(service.runner, model, texts, call, body.wanted, threshold)

    def write(index: int) -> RedactedText:
        found = redactor.redact(texts[index], more[index])
        return RedactedText(index, found.text, [_written(it) for it in found.entities])

    written = [await service.search_in_thread(partial(write, index)) for index in range(len(texts))]
    reply = RedactedList(
        written,
        model=call.model or None if model else None,
        vault=redactor.vault.values if body.return_vault else UNSET,
        warnings=call.warnings or UNSET,
    )
    return Raw(await service.search_in_thread(lambda: msgspec.json.encode(reply)))


def _written(entity: Entity) -> RedactedEntity:
    return RedactedEntity(entity.text, entity.label, entity.start, entity.end, entity.score)
