"""POST /v1/rerank and its other paths: the bodies of Cohere, Jina, vLLM and llama.cpp, and that of TEI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, loose
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.openai.schema import EmbeddingUsage
from headrace.api.service import Service, new_id
from headrace.api.tasks.texts import reply_to, usage_of
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.tasks.rerank import PairOptions, Ranked, rerank
from headrace.tasks.task_limits import MAX_TEXTS

_DOCUMENTS = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_TEXTS,
    "items": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    "description": "Texts, or objects whose `text` (or `rank_fields`) are read.",
}
_TEXTS = {"type": "array", "minItems": 1, "maxItems": MAX_TEXTS, "items": {"type": "string"}}
_FIELDS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


class RerankBody(RequestBody, kw_only=True):
    """Send `documents` (Cohere, Jina, vLLM) or `texts` (TEI), and the reply has that one's shape.

    Documents longer than the model's context are refused unless `truncate` is true or `max_tokens_per_doc`
    says how many tokens of each are read. `instruction` tells a reranker that is a decoder what the query is
    for.
    """

    no_effect: ClassVar[Mapping[str, Values]] = {
        "max_chunks_per_doc": (),
        "truncation_direction": ("Right", "right"),
        "user": (),
        "priority": (0,),
    }

    query: str
    documents: Annotated[Any, loose(_DOCUMENTS)] = None
    texts: Annotated[Any, loose(_TEXTS)] = None
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    rank_fields: Annotated[Any, loose(_FIELDS)] = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    truncate: bool | None = None
    raw_scores: bool | None = None
    instruction: str | None = None
    return_text: bool | None = None


class RerankDocument(Struct, frozen=True):
    """A document of the request."""

    text: str


class RerankResult(Struct, frozen=True, kw_only=True):
    """`index` is the document's place in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class BilledUnits(Struct, frozen=True):
    """One search for each request."""

    search_units: int = 1


class RerankMeta(Struct, frozen=True):
    """What Cohere's clients read."""

    billed_units: BilledUnits = BilledUnits()


class RerankReply(Struct, frozen=True, kw_only=True):
    """The documents, the best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage
    meta: RerankMeta = RerankMeta()
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


class TeiRank(Struct, frozen=True, kw_only=True):
    """A text's place in the request and its score, in the list that TEI answers with."""

    index: int
    score: float
    text: str | UnsetType = UNSET


_TEI = Content(
    "application/json", {"type": "array", "items": {"$ref": "#/components/schemas/TeiRank"}}, (TeiRank,)
)


async def _answer(body: RerankBody, call: HttpCall, service: Service) -> Struct | Raw:
    texts = _texts(body)
    found = await rerank(
        service.runner,
        body.model,
        body.query,
        texts,
        call,
        top_n=body.top_n,
        options=PairOptions(
            truncate=bool(body.truncate),
            max_tokens_per_doc=body.max_tokens_per_doc,
            raw=bool(body.raw_scores),
            instruction=body.instruction,
        ),
    )
    if body.texts is not None:
        shown = [TeiRank(index=one.index, score=one.score, text=_text(body, texts, one)) for one in found]
        return Raw(msgspec.json.encode(shown))
    return RerankReply(
        id=new_id("rerank"),
        model=call.model,
        results=[_result(body, texts, one) for one in found],
        usage=usage_of(call),
        warnings=call.warnings or UNSET,
    )


def _result(body: RerankBody, texts: list[str], one: Ranked) -> RerankResult:
    document = RerankDocument(texts[one.index]) if body.return_documents else UNSET
    return RerankResult(index=one.index, relevance_score=one.score, document=document)


def _text(body: RerankBody, texts: list[str], one: Ranked) -> str | UnsetType:
    return texts[one.index] if body.return_text else UNSET


def _texts(body: RerankBody) -> list[str]:
    """The documents as texts. InvalidRequest names the first that is none."""
    if (body.documents is None) == (body.texts is None):
        raise InvalidRequest(
            "send either documents or texts", param="documents", code="missing_required_parameter"
        )
    name = "documents" if body.texts is None else "texts"
    given: object = body.documents if body.texts is None else body.texts
    if not isinstance(given, list):
        raise InvalidRequest(f"{name} is a list of texts", param=name, code="invalid_type")
    entries = cast("list[object]", given)
    if not 0 < len(entries) <= MAX_TEXTS:
        raise InvalidRequest(
            f"{name} has {len(entries):,} entries, it must have 1 to {MAX_TEXTS:,}: split it",
            param=name,
            code="invalid_value",
        )
    named: object = body.rank_fields
    fields = cast("list[object]", named) if isinstance(named, list) else []
    fields = fields or ["text"]
    return [_document(one, fields, f"{name}[{at}]") for at, one in enumerate(entries)]


def _document(given: object, fields: list[object], place: str) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        found = [cast("dict[object, object]", given).get(field) for field in fields]
        texts = [text for text in found if isinstance(text, str)]
        if texts:
            return "\n".join(texts)
    named = ", ".join(map(str, fields))[:100]
    raise InvalidRequest(
        f"{place} is neither a text nor an object with {named}", param=place, code="invalid_type"
    )


@Endpoint("POST", "/v1/rerank", body=RerankBody, reply=RerankReply, content=(_TEI,))
async def rank(http: HttpRequest) -> Response:
    """Documents in the order in which they answer a query. Without `model`, the first served model that ranks
    documents, or else one that embeds, with a warning."""
    return await reply_to(http, RerankBody, _answer)


@Endpoint("POST", "/rerank", body=RerankBody, reply=RerankReply, content=(_TEI,), hidden=True)
async def rank_unversioned(http: HttpRequest) -> Response:
    """As /v1/rerank: the path of TEI, vLLM and llama.cpp."""
    return await reply_to(http, RerankBody, _answer)


@Endpoint("POST", "/v2/rerank", body=RerankBody, reply=RerankReply, content=(_TEI,), hidden=True)
async def rank_cohere(http: HttpRequest) -> Response:
    """As /v1/rerank: the path of Cohere's second version."""
    return await reply_to(http, RerankBody, _answer)


@Endpoint("POST", "/reranking", body=RerankBody, reply=RerankReply, content=(_TEI,), hidden=True)
async def rank_llama_cpp(http: HttpRequest) -> Response:
    """As /v1/rerank: a path of llama.cpp."""
    return await reply_to(http, RerankBody, _answer)


@Endpoint("POST", "/v1/reranking", body=RerankBody, reply=RerankReply, content=(_TEI,), hidden=True)
async def rank_llama_cpp_v1(http: HttpRequest) -> Response:
    """As /v1/rerank: a path of llama.cpp."""
    return await reply_to(http, RerankBody, _answer)


@Endpoint("POST", "/api/rerank", body=RerankBody, reply=RerankReply, content=(_TEI,), hidden=True)
async def rank_ollama(http: HttpRequest) -> Response:
    """As /v1/rerank, beside Ollama's endpoints."""
    return await reply_to(http, RerankBody, _answer)
