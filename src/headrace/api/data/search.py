"""POST /v1/search: hybrid search over indexes, in Spice's form."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.search.index import MAX_LIMIT
from headrace.search.searching import (
    MAX_INDEXES,
    MAX_KEYWORDS,
    MAX_TEXT,
    NamedHit,
    SearchRequest,
    search,
    warn_of_unknown,
)
from headrace.search.where import MAX_LENGTH, Value, is_attribute, read_where

_Name = Annotated[str, Meta(max_length=200)]


class SearchBody(RequestBody, kw_only=True):
    """What is looked for. `datasets` are the indexes (none: all), `additional_columns` the attributes to show
    (none: all), `keywords` what must be in a hit. `rerank` reads the best hits by a reranker: true takes the
    first that is served."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    datasets: Annotated[list[_Name], Meta(max_length=MAX_INDEXES)] | None = None
    where: Annotated[str, Meta(max_length=MAX_LENGTH)] | None = None
    additional_columns: Annotated[list[_Name], Meta(max_length=64)] | None = None
    keywords: Annotated[list[_Name], Meta(max_length=MAX_KEYWORDS)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] | None = None
    rerank: bool | _Name | None = None
    mode: Literal["hybrid", "vector", "text"] | None = None


class SearchExplanation(Struct, frozen=True, kw_only=True):
    """Why a hit is where it is: ranks from 1, null where that part has not found it, and the characters
    [start, end) of the document."""

    bm25_rank: int | None
    bm25_score: float | None
    vector_rank: int | None
    vector_score: float | None
    rerank_score: float | None
    start: int
    end: int
    chunk: int
    generation: int


class SearchResult(Struct, frozen=True, kw_only=True, rename={"score": "_score"}):
    """A hit: the text that was found, its document, and what was asked for of its attributes."""

    matches: dict[str, str]
    dataset: str
    primary_key: dict[str, str]
    data: dict[str, str | int | float | bool]
    score: float
    explain: SearchExplanation


class SearchReply(Struct, frozen=True):
    """The hits, best first."""

    results: list[SearchResult]
    duration_ms: float


@Endpoint(
    "POST",
    "/v1/search",
    body=SearchBody,
    reply=SearchReply,
    errors={404: "A dataset that is named has no index, or there is none at all."},
)
async def search_indexes(http: HttpRequest) -> Response:
    """The chunks that answer a text best, by words and by meaning."""
    began = time.perf_counter()
    service, call = get_service(http), call_of(http)
    body = await read_checked(SearchBody, http)
    found = await done(http, _found(service, body, call))
    results = [_result(one, body.additional_columns) for one in found]
    return json_response(SearchReply(results, round((time.perf_counter() - began) * 1000, 3)))


async def _found(service: Service, body: SearchBody, call: CallContext) -> list[NamedHit]:
    request = SearchRequest(
        text=body.text,
        limit=body.limit or 10,
        mode=body.mode or "hybrid",
        where=None if body.where is None else read_where(body.where),
        keywords=tuple(body.keywords or ()),
        rerank=reranker_of(service, body.rerank),
    )

    names = body.datasets
    indexes = await service.run_in_thread(lambda: service.indexes.find_all(names))
    if body.additional_columns:
        looked_for = [name for name in body.additional_columns if is_attribute(name)]
        await warn_of_unknown(indexes, looked_for, "additional_columns", call)
    return await search(indexes, request, service.runner, call)


def reranker_of(service: Service, wanted: bool | str | None) -> str | None:
    """The model that reranks; InvalidRequest where any is wanted and none is served."""
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, str):
        return wanted
    name = service.sources.able("rerank")
    if name is None:
        raise InvalidRequest(
            "no model that is served can rerank: serve a reranker, or name a model in rerank", param="rerank"
        )
    return name


def _result(found: NamedHit, columns: list[str] | None) -> SearchResult:
    hit = found.hit
    data: Mapping[str, Value] = hit.attributes
    if columns is not None:
        data = {name: data[name] for name in columns if name in data}
    return SearchResult(
        matches={"text": hit.text},
        dataset=found.index,
        primary_key={"key": hit.key},
        data=dict(data),
        score=hit.score,
        explain=SearchExplanation(
            bm25_rank=hit.bm25_rank,
            bm25_score=hit.bm25_score,
            vector_rank=hit.vector_rank,
            vector_score=hit.vector_score,
            rerank_score=hit.rerank_score,
            start=hit.span.start,
            end=hit.span.end,
            chunk=hit.position,
            generation=found.generation,
        ),
    )
