"""POST /predict: labels of texts and pairs, in the shape of text-embeddings-inference (TEI)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.generation import done
from headrace.api.service import get_service
from headrace.api.tei.bodies import TruncationDirection, raw_response, refuse_left
from headrace.errors import InvalidRequest
from headrace.inference.requests import TextPair
from headrace.tasks.classify import classify
from headrace.tasks.task_limits import MAX_TEXTS, check_texts

_ONE = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
    ]
}
PAIRS: Final = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _ONE, "minItems": 1, "maxItems": MAX_TEXTS}]
}
_LABEL = {"type": "object", "properties": {"score": {"type": "number"}, "label": {"type": "string"}}}
LABELS: Final = {"type": "array", "items": _LABEL}


class PredictBody(RequestBody, kw_only=True):
    """A text, a pair [first, second], or a list of lists of one or two texts."""

    inputs: Annotated[Any, Meta(extra_json_schema=PAIRS)]
    model: str | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: TruncationDirection | None = None


class Prediction(Struct, frozen=True):
    """A label with its score."""

    score: float
    label: str


def best_first(scores: Sequence[float], labels: Sequence[str]) -> list[Prediction]:
    """The labels with their scores, the highest first."""
    found = [Prediction(score, label) for score, label in zip(scores, labels, strict=True)]
    return sorted(found, key=lambda one: -one.score)


@Endpoint(
    "POST",
    "/predict",
    body=PredictBody,
    content=(Content("application/json", {"anyOf": [LABELS, {"type": "array", "items": LABELS}]}),),
)
async def predict(http: HttpRequest) -> Response:
    """Of each text or pair its labels with their scores, best first."""
    return raw_response(await predicted(http, await read_checked(PredictBody, http)))


async def predicted(http: HttpRequest, body: PredictBody) -> list[Any]:
    """The labels that a body asks for: of one input, or of each of several."""
    inputs, several = read_pairs(body.inputs)
    refuse_left(body.truncation_direction)
    call, runner = call_of(http), get_service(http).runner
    work = classify(runner, body.model, inputs, call, truncate=bool(body.truncate), raw=bool(body.raw_scores))
    found = [best_first(one.scores, one.labels) for one in await done(http, work)]
    return found if several else found[0]


def read_pairs(value: object) -> tuple[list[str | TextPair], bool]:
    """The texts and pairs in `inputs`, and whether they are a list of several."""
    if isinstance(value, str):
        return [value], False
    entries = cast("list[object]", value) if isinstance(value, list) else []
    if len(entries) in (1, 2) and all(isinstance(one, str) for one in entries):
        return [_input(entries)], False
    check_texts(entries, "inputs")
    return [_input(one) for one in entries], True


def _input(value: object) -> str | TextPair:
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [one for one in entries if isinstance(one, str)]
    if len(texts) != len(entries) or len(texts) not in (1, 2):
        raise InvalidRequest(
            "inputs has an entry that is no text and no list of one or two texts", param="inputs"
        )
    return texts[0] if len(texts) == 1 else TextPair(*texts)
