"""POST /anonymize, in Presidio's shape: replace what /analyze has found."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.tasks.pii.operators import DEFAULT, Operator, Vault, read_operator
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.spans import resolved
from headrace.tasks.task_limits import check_searched

_MAX_RESULTS = 50_000


class AnalyzerResult(Struct, frozen=True):
    """An entity, as /analyze answers."""

    start: Annotated[int, Meta(ge=0)]
    end: Annotated[int, Meta(ge=0)]
    entity_type: Annotated[str, Meta(min_length=1, max_length=64)]
    score: Annotated[float, Meta(ge=0, le=1)] = 1.0
    analysis_explanation: Any = None
    recognition_metadata: Any = None


class AnonymizeBody(RequestBody, kw_only=True):
    """Presidio's body. By default an entity becomes its type, <EMAIL_ADDRESS>."""

    text: Annotated[str, Meta(min_length=1)]
    analyzer_results: Annotated[list[AnalyzerResult], Meta(max_length=_MAX_RESULTS)]
    anonymizers: dict[str, dict[str, Any]] | None = None

    def operators(self) -> dict[str, Operator]:
        """By entity; raises InvalidRequest."""
        return {name: _operator(fields) for name, fields in (self.anonymizers or {}).items()}

    def findings(self) -> list[RecognizerResult]:
        """What is replaced; raises InvalidRequest for places that are not in the text."""
        for index, one in enumerate(self.analyzer_results):
            if not one.start <= one.end <= len(self.text):
                raise InvalidRequest(
                    f"analyzer_results[{index}] is from {one.start:,} to {one.end:,}, the text has"
                    f" {len(self.text):,} characters",
                    param="analyzer_results",
                )
        return [
            RecognizerResult(one.start, one.end, one.entity_type, one.score, "", "", one.score, None)
            for one in self.analyzer_results
        ]


def _operator(fields: dict[str, Any]) -> Operator:
    """Presidio names a salt what is a key here, and drops a masking_char where none is given."""
    rest = dict(fields)
    if rest.get("type") == "hash" and "salt" in rest:
        rest["key"] = rest.pop("salt")
    return read_operator(rest, "anonymizers")


class AnonymizedItem(Struct, frozen=True):
    """What stands at characters [start, end) of the new text."""

    start: int
    end: int
    entity_type: str
    text: str
    operator: str


class Anonymized(Struct, frozen=True):
    """The new text, and what was put into it, last first."""

    text: str
    items: list[AnonymizedItem]


@Endpoint("POST", "/anonymize", body=AnonymizeBody, reply=Anonymized)
async def anonymize(http: HttpRequest) -> Response:
    """The text without what `analyzer_results` name, with operators by entity."""
    body = await read_checked(AnonymizeBody, http)
    check_searched([body.text], "text")
    return json_response(Raw(await get_service(http).search_in_thread(lambda: _anonymized(body))))


def _anonymized(body: AnonymizeBody) -> bytes:
    operators, vault = body.operators(), Vault()
    default = operators.get(DEFAULT, Operator())
    parts: list[str] = []
    items: list[AnonymizedItem] = []
    done = length = 0
    for one in resolved(body.text, body.findings()):
        operator = operators.get(one.label, default)
        if operator.has_placeholders:
            operator = replace(operator, new_value=f"<{one.label}>")
        new = vault.replacement(operator, one.label, body.text[one.start : one.end])
        parts += [body.text[done : one.start], new]
        length += one.start - done
        items.append(AnonymizedItem(length, length + len(new), one.label, new, operator.type))
        length, done = length + len(new), one.end
    return msgspec.json.encode(Anonymized("".join([*parts, body.text[done:]]), items[::-1]))
