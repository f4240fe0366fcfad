"""Vectors of text-embeddings-inference (TEI): /embed, /embed_sparse, /embed_all, /similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.prompts import read_prompts
from headrace.api.service import get_service
from headrace.api.tasks.task_reply import texts_of
from headrace.api.tasks.vector_format import of_length
from headrace.api.tei.bodies import (
    EmbedTextsBody,
    InputsBody,
    TruncationDirection,
    cut,
    raw_response,
    rows_of_numbers,
)
from headrace.engine.unit_rows import unit_rows
from headrace.errors import InvalidRequest
from headrace.tasks.embed import EmbedOptions, embed_texts
from headrace.tasks.late_interaction import token_vectors
from headrace.tasks.sparse import SparseVector, sparse
from headrace.tasks.task_limits import MAX_NUMBERS, check_texts

MAX_ENTRIES = 1_000_000
"""Of all sparse vectors in a reply, which has 40 bytes for each."""


class SimilarityInputs(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """How the sentences are read."""

    truncate: bool | None = None
    truncation_direction: TruncationDirection | None = None
    prompt_name: str | None = None


class SimilarityBody(RequestBody, kw_only=True):
    """As huggingface_hub's InferenceClient.sentence_similarity sends it."""

    inputs: SimilarityInputs
    model: str | None = None
    parameters: SimilarityParameters | None = None


class SparseEntry(Struct, frozen=True):
    """The weight of an entry of the vocabulary."""

    index: int
    value: float


_ENTRY = {"type": "object", "properties": {"index": {"type": "integer"}, "value": {"type": "number"}}}
_SPARSE = Content("application/json", {"type": "array", "items": {"type": "array", "items": _ENTRY}})


async def embedded(http: HttpRequest, body: EmbedTextsBody) -> list[list[float]]:
    """The vectors that a body asks for."""
    options = EmbedOptions(
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        truncate=cut(body.truncate, body.truncation_direction),
    )
    inputs, call = read_prompts(body.inputs, "inputs"), call_of(http)
    vectors = await done(http, embed_texts(get_service(http).runner, body.model, inputs, call, options))
    return of_length(vectors, body.normalize is not False, call, "normalize").tolist()


async def similarities(http: HttpRequest, body: SimilarityBody) -> list[float]:
    """The cosines that a body asks for."""
    given, how = body.inputs, body.parameters or SimilarityParameters()
    check_texts(given.sentences, "inputs.sentences")
    options = EmbedOptions(
        prompt_name=how.prompt_name,
        truncate=cut(how.truncate, how.truncation_direction),
    )
    texts, call = [given.source_sentence, *given.sentences], call_of(http)
    work = embed_texts(get_service(http).runner, body.model, texts, call, options)
    vectors = unit_rows(await done(http, work))
    return (vectors[1:] @ vectors[0]).tolist()


@Endpoint("POST", "/embed", body=EmbedTextsBody, content=(rows_of_numbers(2),))
async def embed(http: HttpRequest) -> Response:
    """A list of vectors, one for each text."""
    return raw_response(await embedded(http, await read_checked(EmbedTextsBody, http)))


@Endpoint("POST", "/embed_sparse", body=InputsBody, content=(_SPARSE,))
async def embed_sparse(http: HttpRequest) -> Response:
    """Of each text a list of the vocabulary's entries with their weights, by a SPLADE model."""
    body = await read_checked(InputsBody, http)
    texts = texts_of(body.inputs, "inputs")
    body.check_plain()
    work = sparse(get_service(http).runner, body.model, texts, call_of(http), truncate=bool(body.truncate))
    vectors = await done(http, work)
    entries = sum(len(one.ids) for one in vectors)
    if entries > MAX_ENTRIES:
        raise InvalidRequest(
            f"the vectors have {entries:,} entries, at most {MAX_ENTRIES:,} are sent: send fewer texts",
            param="inputs",
        )
    return await _joined(http, [partial(_sparse, one) for one in vectors])


def _sparse(one: SparseVector) -> list[SparseEntry]:
    return [SparseEntry(int(token), float(value)) for token, value in zip(one.ids, one.values, strict=True)]


async def _joined(http: HttpRequest, parts: Sequence[Callable[[], object]]) -> Response:
    """A reply that is a list of what `parts` make, each in a thread: the loop goes on meanwhile."""
    service = get_service(http)
    written = [
        await service.search_in_thread(lambda part=part: msgspec.json.encode(part())) for part in parts
    ]
    return json_response(Raw(b"[" + b",".join(written) + b"]"))


@Endpoint("POST", "/embed_all", body=InputsBody, content=(rows_of_numbers(3),))
async def embed_all(http: HttpRequest) -> Response:
    """Of each text the vectors of its tokens, by a model for late interaction or one without pooling."""
    body = await read_checked(InputsBody, http)
    texts = texts_of(body.inputs, "inputs")
    body.check_plain()
    runner = get_service(http).runner
    work = token_vectors(
        runner, body.model, texts, call_of(http), truncate=bool(body.truncate), most=MAX_NUMBERS
    )
    return await _joined(http, [one.tolist for one in await done(http, work)])


@Endpoint("POST", "/similarity", body=SimilarityBody, content=(rows_of_numbers(1),))
async def similarity(http: HttpRequest) -> Response:
    """The cosine of a sentence with each of several."""
    return raw_response(await similarities(http, await read_checked(SimilarityBody, http)))
