"""POST /pipeline/TASK and /: the bodies that huggingface_hub's InferenceClient sends to a URL.

A model is named in the URL: /pipeline/token-classification?model=NAME.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, converted, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.generation import done
from headrace.api.http.query import Query, read_query
from headrace.api.service import get_service
from headrace.api.tasks.task_reply import TEXTS, texts_of
from headrace.api.tei.bodies import EmbedTextsBody, TruncationDirection, raw_response, rows_of_numbers
from headrace.api.tei.embeddings import SimilarityBody, embedded, similarities
from headrace.api.tei.predict import LABELS, PAIRS, best_first, read_pairs
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.classify import classify
from headrace.tasks.entities import Entity, extract_entities
from headrace.tasks.task_limits import MAX_LABELS
from headrace.tasks.token_labels import OUTSIDE, Aggregation
from headrace.tasks.zero_shot import TEMPLATE, zero_shot
from headrace.weights.head import Activation

_LISTED_LABELS = Content("application/json", {"type": "array", "items": LABELS})
_ACTIVATIONS: dict[str, Activation] = {"softmax": "softmax", "sigmoid": "sigmoid", "none": "identity"}


class PipelineQuery(Query, frozen=True):
    """Which model answers; without it the first that can."""

    model: str | None = None


class TextParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of the logits, and how many labels are given."""

    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    top_k: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class TextClassificationBody(RequestBody, kw_only=True):
    """A text, or several; pairs are lists of two texts."""

    inputs: Annotated[Any, Meta(extra_json_schema=PAIRS)]
    parameters: TextParameters | None = None


class ZeroShotParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """The labels, and what is said of them."""

    candidate_labels: Annotated[list[str], Meta(min_length=1, max_length=MAX_LABELS)]
    hypothesis_template: str | None = None
    multi_label: bool | None = None


class ZeroShotBody(RequestBody, kw_only=True):
    """A text, or several, and labels for them."""

    inputs: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    parameters: ZeroShotParameters


class TokenParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens become entities, and which are left out."""

    aggregation_strategy: Aggregation | None = None
    ignore_labels: Annotated[list[str], Meta(max_length=MAX_LABELS)] | None = None
    stride: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class TokenClassificationBody(RequestBody, kw_only=True):
    """A text, or several."""

    inputs: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    parameters: TokenParameters | None = None


class LabeledToken(Struct, frozen=True):
    """Characters [start, end) of a text: a group of tokens, or with the strategy `none` a token."""

    start: int
    end: int
    score: float
    word: str
    entity_group: str | UnsetType = UNSET
    entity: str | UnsetType = UNSET


_TOKENS = Content("application/json", {"type": "array"}, (LabeledToken,))


class RootBody(RequestBody, kw_only=True):
    """`inputs` of any of the tasks, with `parameters`, or for vectors with the fields of /embed."""

    inputs: Annotated[Any, Meta(extra_json_schema={"type": ["string", "array", "object"]})]
    parameters: dict[str, Any] | None = None
    truncate: bool | None = None
    truncation_direction: TruncationDirection | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


def _runner(http: HttpRequest) -> tuple[ModelRunner, str | None, CallContext]:
    return get_service(http).runner, read_query(PipelineQuery, http).model, call_of(http)


async def _classified(http: HttpRequest, body: TextClassificationBody) -> list[Any]:
    runner, name, call = _runner(http)
    how, (inputs, _) = body.parameters or TextParameters(), read_pairs(body.inputs)
    function = None if how.function_to_apply is None else _ACTIVATIONS[how.function_to_apply]
    found = await done(http, classify(runner, name, inputs, call, activation=function))
    return [best_first(one.scores, one.labels)[: how.top_k] for one in found]


async def _zero_shot(http: HttpRequest, body: ZeroShotBody) -> list[Any]:
    runner, name, call = _runner(http)
    how, texts = body.parameters, texts_of(body.inputs, "inputs")
    work = zero_shot(
        runner,
        name,
        texts,
        how.candidate_labels,
        call,
        hypothesis_template=TEMPLATE if how.hypothesis_template is None else how.hypothesis_template,
        multi_label=bool(how.multi_label),
    )
    found = [best_first(one.scores, one.labels) for one in await done(http, work)]
    return found[0] if isinstance(body.inputs, str) else found


async def _tokens(http: HttpRequest, body: TokenClassificationBody) -> list[Any]:
    runner, name, call = _runner(http)
    how, texts = body.parameters or TokenParameters(), texts_of(body.inputs, "inputs")
    if how.ignore_labels is not None and OUTSIDE not in how.ignore_labels:
        raise InvalidRequest(
            f"ignore_labels lacks {OUTSIDE!r}: tokens outside of entities are never given",
            param="ignore_labels",
        )
    strategy, ignored = how.aggregation_strategy, frozenset(how.ignore_labels or ())
    work = extract_entities(runner, name, texts, None, call, aggregation=strategy, stride=how.stride)
    found = [
        [_labeled(one, strategy) for one in entities if one.label not in ignored]
        for entities in await done(http, work)
    ]
    return found[0] if isinstance(body.inputs, str) else found


def _labeled(one: Entity, strategy: Aggregation | None) -> LabeledToken:
    if strategy == "none":
        return LabeledToken(one.start, one.end, one.score, one.text, entity=one.label)
    return LabeledToken(one.start, one.end, one.score, one.text, entity_group=one.label)


@Endpoint(
    "POST", "/pipeline/feature-extraction", EmbedTextsBody, content=(rows_of_numbers(2),), query=PipelineQuery
)
async def extract_features(http: HttpRequest) -> Response:
    """Vectors of texts, as /embed."""
    body = await read_checked(EmbedTextsBody, http)
    return raw_response(await embedded(http, _named(http, body)))


@Endpoint(
    "POST",
    "/pipeline/sentence-similarity",
    SimilarityBody,
    content=(rows_of_numbers(1),),
    query=PipelineQuery,
)
async def compare_sentences(http: HttpRequest) -> Response:
    """Cosines, as /similarity."""
    body = await read_checked(SimilarityBody, http)
    return raw_response(await similarities(http, _named(http, body)))


@Endpoint(
    "POST",
    "/pipeline/text-classification",
    TextClassificationBody,
    content=(_LISTED_LABELS,),
    query=PipelineQuery,
)
async def classify_texts(http: HttpRequest) -> Response:
    """Of each text its labels, best first, in a list also for one text."""
    return raw_response(await _classified(http, await read_checked(TextClassificationBody, http)))


@Endpoint(
    "POST",
    "/pipeline/zero-shot-classification",
    ZeroShotBody,
    content=(Content("application/json", {"type": "array"}),),
    query=PipelineQuery,
)
async def classify_by_labels(http: HttpRequest) -> Response:
    """The labels of a text, best first; a list of these for a list of texts."""
    return raw_response(await _zero_shot(http, await read_checked(ZeroShotBody, http)))


@Endpoint(
    "POST", "/pipeline/token-classification", TokenClassificationBody, content=(_TOKENS,), query=PipelineQuery
)
async def classify_tokens(http: HttpRequest) -> Response:
    """The entities of a text; a list of these for a list of texts."""
    return raw_response(await _tokens(http, await read_checked(TokenClassificationBody, http)))


@Endpoint(
    "POST", "/", RootBody, content=(Content("application/json", {"type": "array"}),), query=PipelineQuery
)
async def answer(http: HttpRequest) -> Response:
    """The task that the body names (sentences to compare, candidate labels), otherwise what the model does:
    labels of texts or tokens, or vectors."""
    body = await read_checked(RootBody, http)
    return raw_response(await _answered(http, body))


async def _answered(http: HttpRequest, body: RootBody) -> list[Any]:
    given = {name: value for name, value in structs.asdict(body).items() if value is not None}
    if isinstance(body.inputs, dict):
        return await similarities(http, _named(http, converted(SimilarityBody, given)))
    if "candidate_labels" in (body.parameters or {}):
        return await _zero_shot(http, converted(ZeroShotBody, given))
    runner, name, call = _runner(http)
    async with runner.lease(name, call) as model:
        tasks = model.tasks
    if "classify" in tasks:
        return await _classified(http, converted(TextClassificationBody, given))
    if "token_classify" in tasks or "entities" in tasks:
        return await _tokens(http, converted(TokenClassificationBody, given))
    return await embedded(http, _named(http, converted(EmbedTextsBody, given)))


def _named(http: HttpRequest, body: Any) -> Any:
    """The body with the model that the URL names; InvalidRequest where both name one."""
    name = read_query(PipelineQuery, http).model
    if name is not None and body.model is not None:
        raise InvalidRequest("model is in the URL and in the body: send it once", param="model")
    return body if name is None else structs.replace(body, model=name)
