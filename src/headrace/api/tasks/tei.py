"""The endpoints of Hugging Face's text-embeddings-inference: /embed, /embed_all, /embed_sparse, /predict,
/similarity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, converted
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.service import Service, new_id
from headrace.api.tasks.texts import TEXTS, read_texts, reply_to
from headrace.errors import InvalidRequest
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.tasks.classify import Classification, classify
from headrace.tasks.late_interaction import token_vectors
from headrace.tasks.sparse import sparse
from headrace.tasks.task_limits import MAX_TEXTS
from headrace.weights.head import TaskName

_VECTOR = {"type": "array", "items": {"type": "number"}}
_VECTORS = Content("application/json", {"type": "array", "items": _VECTOR})
_TOKEN_VECTORS = Content("application/json", {"type": "array", "items": {"type": "array", "items": _VECTOR}})
_SCORES = Content("application/json", {"type": "array", "items": {"type": "number"}})


class TeiBody(RequestBody, kw_only=True):
    """What the bodies of TEI share; texts that are too long are refused unless `truncate` is true."""

    no_effect: ClassVar[Mapping[str, Values]] = {"truncation_direction": ("Right", "right")}

    inputs: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    truncate: bool | None = None


class TeiEmbedBody(TeiBody, kw_only=True):
    """Texts whose vectors are wanted."""

    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class TeiPredictBody(TeiBody, kw_only=True):
    """A text, a pair of texts, or a list of lists of one or two texts."""

    raw_scores: bool | None = None


class TeiSimilarityInputs(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class TeiSimilarityBody(RequestBody, kw_only=True):
    """A sentence and those that it is compared with."""

    no_effect: ClassVar[Mapping[str, Values]] = {"parameters": (None, {})}

    inputs: dict[str, Any]
    model: str | None = None


class TeiLabel(Struct, frozen=True):
    """A label and its score."""

    score: float
    label: str


class TeiWeight(Struct, frozen=True):
    """An entry of a sparse vector: a token id and its weight."""

    index: int
    value: float


def _typed(kind: type[Struct]) -> Content:
    item = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return Content("application/json", {"type": "array", "items": {"type": "array", "items": item}}, (kind,))


async def _vectors(
    body: TeiEmbedBody | TeiSimilarityBody, texts: list[str], call: HttpCall, service: Service
) -> list[Any]:
    task: TaskName = "embed"
    truncate = isinstance(body, TeiEmbedBody) and bool(body.truncate)
    async with service.runner.lease(body.model, call, task) as model:
        request = EmbeddingRequest(
            id=new_id("embed"),
            model=model.name,
            inputs=tuple(texts),
            truncate=truncate,
            prompt_name=body.prompt_name if isinstance(body, TeiEmbedBody) else None,
            dimensions=body.dimensions if isinstance(body, TeiEmbedBody) else None,
        )
        return await service.runner.rows(request, call)


async def _embed(body: TeiEmbedBody, call: HttpCall, service: Service) -> Raw:
    rows = await _vectors(body, read_texts(body.inputs, "inputs"), call, service)
    if body.normalize is False:
        call.warn("normalize", "vectors have length 1 where the model says so")
    return Raw(msgspec.json.encode([row[0].tolist() for row in rows]))


async def _embed_all(body: TeiEmbedBody, call: HttpCall, service: Service) -> Raw:
    texts = read_texts(body.inputs, "inputs")
    rows = await token_vectors(service.runner, body.model, texts, call, truncate=bool(body.truncate))
    return Raw(msgspec.json.encode([row.tolist() for row in rows]))


async def _embed_sparse(body: TeiEmbedBody, call: HttpCall, service: Service) -> Raw:
    texts = read_texts(body.inputs, "inputs")
    found = await sparse(service.runner, body.model, texts, call, truncate=bool(body.truncate))
    shown = [
        [TeiWeight(int(index), float(value)) for index, value in zip(one.ids, one.values, strict=True)]
        for one in found
    ]
    return Raw(msgspec.json.encode(shown))


async def _predict(body: TeiPredictBody, call: HttpCall, service: Service) -> Raw:
    inputs, several = _sequences(body.inputs)
    found = await classify(
        service.runner, body.model, inputs, call, truncate=bool(body.truncate), raw=bool(body.raw_scores)
    )
    shown = [_ranked(one) for one in found]
    return Raw(msgspec.json.encode(shown if several else shown[0]))


def _ranked(one: Classification) -> list[TeiLabel]:
    labels = [TeiLabel(score, label) for score, label in zip(one.scores, one.labels, strict=True)]
    return sorted(labels, key=lambda label: -label.score)


def _sequences(given: object) -> tuple[list[str | TextPair], bool]:
    """The texts and pairs, and whether these are several."""
    if isinstance(given, str):
        return [given], False
    entries = cast("list[object]", given) if isinstance(given, list) else []
    if entries and all(isinstance(entry, str) for entry in entries):
        return [_sequence(entries)], False
    if not 0 < len(entries) <= MAX_TEXTS:
        raise InvalidRequest(
            f"inputs has {len(entries):,} entries, it must have 1 to {MAX_TEXTS:,}", param="inputs"
        )
    return [_sequence([entry] if isinstance(entry, str) else entry) for entry in entries], True


def _sequence(given: object) -> str | TextPair:
    texts = cast("list[object]", given) if isinstance(given, list) else []
    match texts:
        case [str(text)]:
            return text
        case [str(first), str(second)]:
            return TextPair(first, second)
        case _:
            raise InvalidRequest(
                "an entry of inputs is neither a text nor a list of one or two texts", param="inputs"
            )


async def _similarity(body: TeiSimilarityBody, call: HttpCall, service: Service) -> Raw:
    inputs = converted(TeiSimilarityInputs, body.inputs, place="inputs")
    sentences = read_texts(inputs.sentences, "inputs.sentences")
    rows = await _vectors(body, [inputs.source_sentence, *sentences], call, service)
    vectors = np.concatenate(rows)
    return Raw(msgspec.json.encode((vectors[1:] @ vectors[0]).tolist()))


@Endpoint("POST", "/embed", body=TeiEmbedBody, content=(_VECTORS,))
async def embed(http: HttpRequest) -> Response:
    """A vector of each text."""
    return await reply_to(http, TeiEmbedBody, _embed)


@Endpoint("POST", "/embed_all", body=TeiEmbedBody, content=(_TOKEN_VECTORS,))
async def embed_all(http: HttpRequest) -> Response:
    """A vector of each token of each text."""
    return await reply_to(http, TeiEmbedBody, _embed_all)


@Endpoint("POST", "/embed_sparse", body=TeiEmbedBody, content=(_typed(TeiWeight),))
async def embed_sparse(http: HttpRequest) -> Response:
    """A sparse vector of each text: the entries of the vocabulary above 0."""
    return await reply_to(http, TeiEmbedBody, _embed_sparse)


@Endpoint("POST", "/predict", body=TeiPredictBody, content=(_typed(TeiLabel),))
async def predict(http: HttpRequest) -> Response:
    """The labels of a text or pair, the likeliest first; a list of these for a list of lists."""
    return await reply_to(http, TeiPredictBody, _predict)


@Endpoint("POST", "/similarity", body=TeiSimilarityBody, content=(_SCORES,))
async def similarity(http: HttpRequest) -> Response:
    """The cosine of a sentence with each of several."""
    return await reply_to(http, TeiSimilarityBody, _similarity)
