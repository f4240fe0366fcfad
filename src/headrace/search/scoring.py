"""One order of what words and vectors have found, whatever store has found it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headrace.search.index import IndexQuery, SearchHit

DEPTH = 4
"""Chunks that each part finds for each hit that is wanted."""
LEAST_DEPTH = 100


def depth_of(limit: int) -> int:
    """How many chunks each part finds."""
    return max(LEAST_DEPTH, DEPTH * limit)


def ranked(
    query: IndexQuery,
    has_words: bool,
    chunks: Mapping[int, SearchHit],
    words: Mapping[int, float],
    near: Sequence[int],
    products: Mapping[int, float],
) -> tuple[SearchHit, ...]:
    """The best hits of a query. `chunks` are those of all ids, without scores; `words` are ids with their
    BM25 and `near` ids by their vectors, both best first; `products` are those of ids with the query's
    vector; `has_words` says whether words were looked for."""
    ranks = {found: rank for rank, found in enumerate(near, 1)}
    places = {found: rank for rank, found in enumerate(words, 1)}
    hits = [
        replace(
            hit,
            score=_score(words.get(number), products.get(number), has_words, query.weights),
            bm25_rank=places.get(number),
            bm25_score=words.get(number),
            vector_rank=ranks.get(number),
            vector_score=products.get(number),
        )
        for number, hit in chunks.items()
    ]
    hits.sort(key=lambda hit: (-hit.score, hit.key, hit.position))
    return tuple(hits[: query.limit])


def _score(bm25: float | None, product: float | None, has_words: bool, weights: tuple[float, float]) -> float:
    """The weighted sum; one part alone is what it is. Words that were not found count nothing."""
    if product is None:
        return bm25 or 0.0
    return weights[0] * (bm25 or 0.0) + weights[1] * product if has_words else product
