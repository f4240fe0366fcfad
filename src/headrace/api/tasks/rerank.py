"""POST /rerank and its versions: documents by relevance, in the bodies of Cohere, Jina, Voyage, TEI and
llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.cohere.schema import CohereMeta, meta_of
from headrace.api.http.body import Values, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.llama_cpp.schema import listed
from headrace.api.openai.embedding_schema import EmbeddingUsage
from headrace.api.service import get_service, new_id
from headrace.api.tasks.task_body import TruncatingBody
from headrace.api.tasks.task_reply import DOCUMENTS, documents_of, refuse_twins, usage_of
from headrace.api.tei.bodies import TruncationDirection, refuse_left
from headrace.api.tei.errors import take_surface
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.tasks.rerank import DocumentScore, PairOptions, rerank

_COUNT = Meta(ge=1, le=2**31 - 1)
DOCUMENTS_PER_UNIT = 100  # of one query, in Cohere's search units


class RerankBody(TruncatingBody, kw_only=True):
    """A query and documents; with `texts` in the place of `documents` the reply is TEI's. `top_k` and
    `truncation` are Voyage's names of `top_n` and `truncate`."""

    no_effect: ClassVar[Mapping[str, Values]] = {"user": (), "rank_fields": (["text"],)}
    unsupported: ClassVar[Mapping[str, Values]] = {"max_chunks_per_doc": (), "return_embeddings": (False,)}

    query: str
    documents: Annotated[Any, loose(DOCUMENTS)] = None
    texts: Annotated[Any, loose(DOCUMENTS)] = None
    model: str | None = None
    top_n: Annotated[int, _COUNT] | None = None
    top_k: Annotated[int, _COUNT] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    max_tokens_per_doc: Annotated[int, _COUNT] | None = None
    truncate: bool | None = None
    truncation: bool | None = None
    truncation_direction: TruncationDirection | None = None
    raw_scores: bool | None = None
    use_activation: bool | None = None
    instruction: str | None = None

    def given(self) -> list[str]:
        """The documents; raises InvalidRequest."""
        if (self.documents is None) == (self.texts is None):
            raise InvalidRequest(
                "send either documents (Cohere, Jina) or texts (TEI)",
                param="documents",
                code="missing_required_parameter",
            )
        if self.documents is not None:
            return documents_of(self.documents, "documents")
        return documents_of(self.texts, "texts")

    def options(self) -> PairOptions:
        """How pairs are read and scored; raises InvalidRequest."""
        refuse_twins(self, ("top_n", "top_k"), ("truncate", "truncation"), ("raw_scores", "use_activation"))
        refuse_left(self.truncation_direction)
        return PairOptions(
            truncate=self.cut(self.truncate or self.truncation),
            max_tokens_per_doc=self.max_tokens_per_doc,
            raw=bool(self.raw_scores) or self.use_activation is False,
            instruction=self.instruction,
        )


class RankedDocument(Struct, frozen=True):
    """A document's text."""

    text: str


class RankedResult(Struct, frozen=True):
    """A document by its index, with its text where `return_documents` asks for it."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankReply(Struct, frozen=True):
    """The documents, best first, as Cohere and Jina write them; in `data`, too, where Voyage's fields ask."""

    id: str
    model: str
    results: list[RankedResult]
    meta: CohereMeta
    usage: EmbeddingUsage
    object: str = "list"
    data: list[RankedResult] | UnsetType = UNSET
    warnings: list[ParameterWarning] | UnsetType = UNSET


class TeiRank(Struct, frozen=True):
    """A text by its index, as TEI writes it."""

    index: int
    score: float
    text: str | UnsetType = UNSET


async def reranked(http: HttpRequest, version: str) -> Response:
    """Read the body, rank, and reply in the form that its fields tell."""
    body = await read_checked(RerankBody, http)
    call, runner = call_of(http), body.runner(get_service(http))
    if body.texts is not None:
        take_surface(call)
        call.text_field = "texts"
    documents, top_n = body.given(), body.top_n or body.top_k
    work = rerank(runner, body.model, body.query, documents, call, top_n=top_n, options=body.options())
    found = await done(http, work)
    if body.texts is not None:
        return json_response(Raw(msgspec.json.encode(_tei(found, documents, bool(body.return_text)))))
    usage = usage_of(call)
    shown = bool(body.return_documents)
    results = [
        RankedResult(one.index, one.score, RankedDocument(documents[one.index]) if shown else UNSET)
        for one in found
    ]
    return json_response(
        RerankReply(
            id=new_id("rerank"),
            model=call.model,
            results=results,
            meta=meta_of(call, version, search_units=-(-len(documents) // DOCUMENTS_PER_UNIT)),
            usage=usage,
            data=results if body.top_k is not None or body.truncation is not None else UNSET,
            warnings=call.warnings or UNSET,
        )
    )


def _tei(found: list[DocumentScore], documents: list[str], shown: bool) -> list[TeiRank]:
    return [TeiRank(one.index, one.score, documents[one.index] if shown else UNSET) for one in found]


_LISTED = (listed(TeiRank),)


@Endpoint("POST", "/v1/rerank", body=RerankBody, reply=RerankReply, content=_LISTED)
async def rerank_v1(http: HttpRequest) -> Response:
    """Documents by how well they answer a query, as Cohere's v1, Jina's and llama.cpp's."""
    return await reranked(http, "1")


@Endpoint("POST", "/v2/rerank", body=RerankBody, reply=RerankReply, content=_LISTED)
async def rerank_v2(http: HttpRequest) -> Response:
    """As /v1/rerank, at the path of Cohere's v2."""
    return await reranked(http, "2")


@Endpoint("POST", "/rerank", body=RerankBody, reply=RerankReply, content=_LISTED)
async def rerank_unversioned(http: HttpRequest) -> Response:
    """As /v1/rerank; with `texts`, as TEI's."""
    return await reranked(http, "1")


@Endpoint("POST", "/api/rerank", body=RerankBody, reply=RerankReply, content=_LISTED)
async def rerank_ollama(http: HttpRequest) -> Response:
    """As /v1/rerank, beside Ollama's endpoints."""
    return await reranked(http, "1")


@Endpoint("POST", "/reranking", body=RerankBody, reply=RerankReply, content=_LISTED, hidden=True)
async def reranking(http: HttpRequest) -> Response:
    """As /v1/rerank, at a path of llama.cpp."""
    return await reranked(http, "1")


@Endpoint("POST", "/v1/reranking", body=RerankBody, reply=RerankReply, content=_LISTED, hidden=True)
async def reranking_v1(http: HttpRequest) -> Response:
    """As /v1/rerank, at a path of llama.cpp."""
    return await reranked(http, "1")
