"""The endpoints of text-embeddings-inference (TEI): /embed, /embed_sparse, /embed_all, /similarity,
/predict."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import get_service, new_id
from headrace.api.tasks.task_reply import TEXTS, texts_of
from headrace.engine.unit_rows import unit_rows
from headrace.errors import InvalidRequest
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.ops.value import Array
from headrace.tasks.classify import classify
from headrace.tasks.embed import check_pooled
from headrace.tasks.late_interaction import token_vectors
from headrace.tasks.sparse import sparse
from headrace.tasks.task_limits import check_texts

_PAIRS = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "array"}]}, "minItems": 1},
    ]
}


class InputsBody(RequestBody, kw_only=True):
    """Texts; one that is too long is refused unless `truncate` says that it may be cut."""

    inputs: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    truncate: bool | None = None
    prompt_name: str | None = None


class EmbedTextsBody(InputsBody, kw_only=True):
    """As InputsBody. Vectors have length 1 unless `normalize` is false and the model says otherwise."""

    normalize: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class SimilarityInputs(Struct, frozen=True):
    """A sentence and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityBody(RequestBody, kw_only=True):
    """As huggingface_hub's InferenceClient.sentence_similarity sends it."""

    inputs: SimilarityInputs
    model: str | None = None


class PredictBody(RequestBody, kw_only=True):
    """A text, a pair [first, second], or a list of lists of one or two texts."""

    inputs: Annotated[Any, Meta(extra_json_schema=_PAIRS)]
    model: str | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None


class SparseEntry(Struct, frozen=True):
    """The weight of an entry of the vocabulary."""

    index: int
    value: float


class Prediction(Struct, frozen=True):
    """A label with its score."""

    score: float
    label: str


def _rows(depth: int) -> Content:
    """The schema of nested lists of numbers."""
    schema: dict[str, Any] = {"type": "number"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return Content("application/json", schema)


def _raw(value: object) -> Response:
    return json_response(Raw(msgspec.json.encode(value)))


async def _vectors(http: HttpRequest, body: EmbedTextsBody, texts: list[str]) -> Array:
    request = EmbeddingRequest(
        id=new_id("embed"),
        model=body.model,
        inputs=tuple(texts),
        dimensions=body.dimensions,
        truncate=bool(body.truncate),
        prompt_name=body.prompt_name,
    )
    rows = await done(http, get_service(http).runner.rows(request, call_of(http)))
    check_pooled(rows)
    return np.concatenate(rows)


_ENTRY = {"type": "object", "properties": {"index": {"type": "integer"}, "value": {"type": "number"}}}
_SPARSE = Content("application/json", {"type": "array", "items": {"type": "array", "items": _ENTRY}})
_LABEL = {"type": "object", "properties": {"score": {"type": "number"}, "label": {"type": "string"}}}
_LABELS = {"type": "array", "items": _LABEL}
_PREDICTED = Content("application/json", {"anyOf": [_LABELS, {"type": "array", "items": _LABELS}]})


@Endpoint("POST", "/embed", body=EmbedTextsBody, content=(_rows(2),))
async def embed_texts(http: HttpRequest) -> Response:
    """A list of vectors, one for each text."""
    body = await read_checked(EmbedTextsBody, http)
    vectors = await _vectors(http, body, texts_of(body.inputs, "inputs"))
    return _raw((vectors if body.normalize is False else unit_rows(vectors)).tolist())


@Endpoint("POST", "/embed_sparse", body=InputsBody, content=(_SPARSE,))
async def embed_sparse(http: HttpRequest) -> Response:
    """Of each text a list of the vocabulary's entries with their weights, by a SPLADE model."""
    body = await read_checked(InputsBody, http)
    texts = texts_of(body.inputs, "inputs")
    _no_prompt(body)
    work = sparse(get_service(http).runner, body.model, texts, call_of(http), truncate=bool(body.truncate))
    return _raw(
        [
            [SparseEntry(int(token), float(value)) for token, value in zip(one.ids, one.values, strict=True)]
            for one in await done(http, work)
        ]
    )


@Endpoint("POST", "/embed_all", body=InputsBody, content=(_rows(3),))
async def embed_all(http: HttpRequest) -> Response:
    """Of each text the vectors of its tokens, by a model for late interaction or one without pooling."""
    body = await read_checked(InputsBody, http)
    texts = texts_of(body.inputs, "inputs")
    _no_prompt(body)
    runner = get_service(http).runner
    work = token_vectors(runner, body.model, texts, call_of(http), truncate=bool(body.truncate))
    return _raw([one.tolist() for one in await done(http, work)])


def _no_prompt(body: InputsBody) -> None:
    if body.prompt_name is not None:
        raise InvalidRequest(
            "prompt_name is no parameter of this endpoint: send it to /embed", param="prompt_name"
        )


@Endpoint("POST", "/similarity", body=SimilarityBody, content=(_rows(1),))
async def similarity(http: HttpRequest) -> Response:
    """The cosine of a sentence with each of several."""
    body = await read_checked(SimilarityBody, http)
    given = body.inputs
    check_texts(given.sentences, "inputs.sentences")
    asked = EmbedTextsBody(inputs=None, model=body.model)
    vectors = unit_rows(await _vectors(http, asked, [given.source_sentence, *given.sentences]))
    return _raw((vectors[1:] @ vectors[0]).tolist())


@Endpoint("POST", "/predict", body=PredictBody, content=(_PREDICTED,))
async def predict(http: HttpRequest) -> Response:
    """Of each text or pair its labels with their scores, best first."""
    body = await read_checked(PredictBody, http)
    inputs, several = _inputs(body.inputs)
    call, runner = call_of(http), get_service(http).runner
    work = classify(runner, body.model, inputs, call, truncate=bool(body.truncate), raw=bool(body.raw_scores))
    found = [
        sorted(
            (Prediction(score, label) for score, label in zip(one.scores, one.labels, strict=True)),
            key=lambda it: -it.score,
        )
        for one in await done(http, work)
    ]
    return _raw(found if several else found[0])


def _inputs(value: object) -> tuple[list[str | TextPair], bool]:
    """The texts and pairs, and whether they are a list of several."""
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
