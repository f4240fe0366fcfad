"""Searches over indexes: hybrid by default, with an optional reranker for the best hits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.names import suggestion
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import TextPair
from headrace.ops.value import Array
from headrace.search.embedding import IndexModel
from headrace.search.index import Index, IndexQuery, Mode, SearchHit, check_limit
from headrace.search.where import Condition, attributes_in, is_attribute
from headrace.tasks.rerank import PairOptions, score_pairs

SEARCH = "search"
"""The name of the stage that a search is."""
RERANKED = 50
"""Hits that a reranker reads."""
MAX_TEXT = 32_768
MAX_KEYWORDS = 16
MAX_INDEXES = 16
MAX_NAMED = 20
"""Names of attributes in a warning."""
MAX_NAME_SHOWN = 60
"""Characters of one, and bytes of several as JSON: a warning has to fit into a header."""
MAX_NAMES_BYTES = 1000


class SearchRequest(Struct, frozen=True, kw_only=True):
    """A question to indexes. `rerank` is the model that reads the best RERANKED hits with it."""

    text: str
    limit: int = 10
    mode: Mode = "hybrid"
    where: Condition | None = None
    keywords: tuple[str, ...] = ()
    rerank: str | None = None


class NamedHit(Struct, frozen=True):
    """A hit, the name of its index, and the generation that it is from."""

    index: str
    generation: int
    hit: SearchHit


async def search(
    indexes: Sequence[Index], request: SearchRequest, runner: ModelRunner, call: CallContext
) -> list[NamedHit]:
    """The best hits of all indexes together, at most `limit`. Raises InvalidRequest, and what the models
    raise."""
    _check(indexes, request)
    if request.where is not None:
        await warn_of_unknown(indexes, attributes_in(request.where), "where", call)
    with call.stage(SEARCH, indexes=", ".join(one.name for one in indexes)) as note:
        note.input = request.text
        found = await _found(indexes, request, runner, call)
        note.detail |= {"hits": len(found), "bytes": sum(len(one.hit.text) for one in found)}
        return found


async def search_each(
    indexes: Sequence[Index],
    texts: Sequence[str],
    request: SearchRequest,
    runner: ModelRunner,
    call: CallContext,
) -> list[NamedHit]:
    """The best hits of several texts, each chunk once with its best score, at most `limit`; `request` says
    all but the text. Raises what `search` does."""
    best: dict[tuple[str, str, int], NamedHit] = {}
    for text in dict.fromkeys(texts):
        for one in await search(indexes, replace(request, text=text), runner, call):
            place = (one.index, one.hit.key, one.hit.position)
            if place not in best or one.hit.score > best[place].hit.score:
                best[place] = one
    return sorted(best.values(), key=_order)[: request.limit]


async def warn_of_unknown(
    indexes: Sequence[Index], names: Collection[str], param: str, call: CallContext
) -> None:
    """A warning for names of attributes that no document of some indexes has: they may be misspelled."""

    def look() -> tuple[list[str], list[str]]:
        missing = sorted(names)
        for index in indexes:
            known = index.attributes(missing) if missing else []
            missing = [name for name in missing if name not in known]
        every = {name for index in indexes for name in index.attributes()} if missing else set[str]()
        return missing, sorted(name for name in every if is_attribute(name) and len(name) <= MAX_NAME_SHOWN)

    missing, known = await asyncio.to_thread(look)
    for name in missing[:MAX_NAMED]:
        hint = suggestion(name, known) or f": there are {_some(known)}"
        if known:
            call.warn(param, f"no document has an attribute {name[:MAX_NAME_SHOWN]!r}{hint}")


def _some(names: Sequence[str]) -> str:
    """The first names, in a list that is short in a header, too."""
    shown = list(names[:MAX_NAMED])
    while len(json.dumps(found := ", ".join(shown))) > MAX_NAMES_BYTES:
        shown.pop()
    return found


async def _found(
    indexes: Sequence[Index], request: SearchRequest, runner: ModelRunner, call: CallContext
) -> list[NamedHit]:
    depth = request.limit if request.rerank is None else max(request.limit, RERANKED)
    vectors: dict[str, Array] = {}
    found: list[NamedHit] = []
    for index in indexes:
        model = (await asyncio.to_thread(index.meta)).model
        if model is not None and request.mode != "text" and model not in vectors:
            with call.stage("embed", model=model):
                made = await IndexModel(runner, model).vectors([request.text], call, "query", ["the query"])
            vectors[model] = made[0]
        query = IndexQuery(
            text="" if request.mode == "vector" else request.text,
            vector=None if model is None else vectors.get(model),
            keywords=request.keywords,
            where=request.where,
            limit=depth,
        )
        with call.stage("query index", index=index.name) as note:
            got = await asyncio.to_thread(index.query, query)
            note.detail["hits"] = len(got.hits)
        found += [NamedHit(index.name, got.generation, hit) for hit in got.hits]
    found.sort(key=_order)
    if request.rerank is not None:
        with call.stage("rerank", model=request.rerank, pairs=min(len(found), RERANKED)):
            found = await _reranked(found[:depth], request.text, request.rerank, runner, call)
    return found[: request.limit]


def _order(one: NamedHit) -> tuple[float, str, str, int]:
    """Best first."""
    return -one.hit.score, one.index, one.hit.key, one.hit.position


def _check(indexes: Sequence[Index], request: SearchRequest) -> None:
    check_limit(request.limit)
    if not request.text.strip():
        raise InvalidRequest("the text of the search is empty: say what is looked for", param="text")
    if len(request.text) > MAX_TEXT:
        raise InvalidRequest(
            f"the text has {len(request.text):,} characters, at most {MAX_TEXT:,} are searched for",
            param="text",
        )
    if len(request.keywords) > MAX_KEYWORDS:
        raise InvalidRequest(f"at most {MAX_KEYWORDS} keywords are searched for", param="keywords")
    if not 1 <= len(indexes) <= MAX_INDEXES:
        raise InvalidRequest(
            f"{len(indexes):,} indexes are to be searched, it must be 1 to {MAX_INDEXES}", param="datasets"
        )


async def _reranked(
    hits: Sequence[NamedHit], text: str, model: str, runner: ModelRunner, call: CallContext
) -> list[NamedHit]:
    """The first RERANKED hits in the reranker's order, then the others."""
    best, rest = hits[:RERANKED], hits[RERANKED:]
    if not best:
        return []
    pairs = [TextPair(text, one.hit.text) for one in best]
    scores = await score_pairs(runner, model, pairs, call, PairOptions(truncate=True))
    scored = [
        replace(one, hit=replace(one.hit, score=score, rerank_score=score))
        for one, score in zip(best, scores, strict=True)
    ]
    scored.sort(key=lambda one: (-one.hit.score, one.index, one.hit.key, one.hit.position))
    return [*scored, *rest]
