"""Documents in the order in which they answer a query, and scores of pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.tasks.classify import classify
from headrace.tasks.late_interaction import max_sim, token_vectors
from headrace.weights.head import TaskName

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

MAX_DOCUMENTS = 2048
_ABLE: tuple[TaskName, ...] = ("rerank", "embed")


class RankedDocument(Struct, frozen=True):
    """The place of a document in the list that was given, and its score: the higher the better."""

    index: int
    score: float


class Cut(Struct, frozen=True):
    """How long documents are shortened: to `max_tokens` of their own each (None: as they are), and to what
    the model has room for where `truncate` says so."""

    max_tokens: int | None = None
    truncate: bool = False


async def rerank(
    runner: ModelRunner,
    name: str | None,
    query: str,
    documents: Sequence[str],
    call: CallContext,
    *,
    top_n: int | None = None,
    cut: Cut | None = None,
    raw: bool = False,
) -> list[RankedDocument]:
    """The `top_n` best documents (None: all), the best first; equal scores keep their order.

    A cross-encoder's scores are in (0, 1), or with `raw` its logits; those of late interaction the mean over
    the query's tokens of the nearest token's cosine (MaxSim, Khattab and Zaharia 2020), those of an embedder
    the cosine. Without `name`, the first served model that ranks documents, or else that embeds.
    """
    _check(query, documents, top_n)
    pairs = [TextPair(query, document) for document in documents]
    scores = await score_pairs(runner, name, pairs, call, cut=cut, raw=raw)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [RankedDocument(index, scores[index]) for index in order[:top_n]]


async def score_pairs(
    runner: ModelRunner,
    name: str | None,
    pairs: Sequence[TextPair],
    call: CallContext,
    *,
    cut: Cut | None = None,
    raw: bool = False,
) -> list[float]:
    """How well the second text of each pair answers the first, as `rerank`."""
    cut = cut or Cut()
    name = name or runner.able("rerank") or runner.able("embed")
    async with runner.lease(name, call, *_ABLE) as model:
        if cut.max_tokens is not None:
            limit = cut.max_tokens
            pairs = await runner.in_thread(model, lambda: _shortened(pairs, limit, model, call))
        if model.head is not None and model.head.kind == "classify":
            found = await classify(runner, model.name, pairs, call, truncate=cut.truncate, raw=raw)
            return [one.scores[0] for one in found]
        score = _late_interaction if "token_embed" in model.tasks else _cosines
        return await score(runner, model, pairs, call, cut.truncate)


async def _late_interaction(
    runner: ModelRunner, model: LoadedModel, pairs: Sequence[TextPair], call: CallContext, truncate: bool
) -> list[float]:
    queries, documents = _distinct(pairs)
    asked = await token_vectors(runner, model.name, queries, call, role="query", truncate=truncate)
    found = await token_vectors(runner, model.name, documents, call, role="document", truncate=truncate)
    by_query, by_document = dict(zip(queries, asked, strict=True)), dict(zip(documents, found, strict=True))
    return [
        max_sim(by_query[pair.first], by_document[pair.second]) / max(len(by_query[pair.first]), 1)
        if len(by_document[pair.second])
        else 0.0
        for pair in pairs
    ]


async def _cosines(
    runner: ModelRunner, model: LoadedModel, pairs: Sequence[TextPair], call: CallContext, truncate: bool
) -> list[float]:
    call.warn(
        "model",
        f"{model.name} makes vectors and is no reranker: the scores are cosines of its vectors, which a"
        " reranker such as a cross-encoder would improve",
    )
    queries, documents = _distinct(pairs)
    request = EmbeddingRequest(
        id=new_id(), model=model.name, inputs=(*queries, *documents), task="embed", truncate=truncate
    )
    rows = await runner.rows(request, call)
    by_text = dict(zip((*queries, *documents), rows, strict=True))
    return [float(by_text[pair.first][0] @ by_text[pair.second][0]) for pair in pairs]


def _distinct(pairs: Sequence[TextPair]) -> tuple[list[str], list[str]]:
    """Each text once."""
    return list(dict.fromkeys(pair.first for pair in pairs)), list(dict.fromkeys(p.second for p in pairs))


def _shortened(
    pairs: Sequence[TextPair], limit: int, model: LoadedModel, call: CallContext
) -> list[TextPair]:
    """Pairs whose second texts have at most `limit` tokens; what was cut is a warning."""
    kept: list[TextPair] = []
    cut = 0
    for pair in pairs:
        ids, places = model.tokenizer.encode_with_places(pair.second)
        if len(ids) > limit:
            cut += 1
            pair = TextPair(pair.first, pair.second[: places[limit - 1][1]])
        kept.append(pair)
    if cut:
        call.warn("max_tokens_per_doc", f"{cut:,} documents were cut to {limit:,} tokens")
    return kept


def _check(query: str, documents: Sequence[str], top_n: int | None) -> None:
    if not query.strip():
        raise InvalidRequest("query is empty: say what is looked for", param="query")
    if not 0 < len(documents) <= MAX_DOCUMENTS:
        raise InvalidRequest(
            f"documents has {len(documents):,} texts, it must have 1 to {MAX_DOCUMENTS:,}: split it",
            param="documents",
        )
    if top_n is not None and top_n < 1:
        raise InvalidRequest(f"top_n is {top_n}, it must be at least 1", param="top_n")
