"""The nearest vectors of an index in another machine's store: found there, and scored again here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.ops.value import Array
from headrace.search.vectors import MAX_TIES, best, products_of

_MORE = 64
"""Vectors beyond those that are wanted with which most queries need one scan."""


class RemoteVectors(ABC):
    """The vectors of one state of an index, all of length 1."""

    @abstractmethod
    def scanned(self, query: Array, limit: int, at_least: float | None) -> list[tuple[int, float]]:
        """The ids with the largest products with a query, and these as the store adds them up in float32,
        best first; with `at_least` those of at least that product, equal ones by id."""

    @abstractmethod
    def portions(self, ids: Sequence[int]) -> Iterator[tuple[list[int], Array]]:
        """The vectors of some ids, some at a time."""

    @abstractmethod
    def keys(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Of each id the key of its document, and its place there."""

    def rows(self, ids: Sequence[int]) -> dict[int, Array]:
        """The vectors of some ids."""
        return {number: vector for part in self.portions(ids) for number, vector in zip(*part, strict=True)}

    def products(self, query: Array, ids: Sequence[int]) -> dict[int, float]:
        """Of each id the product of its vector with the query's."""
        wide = query.astype(np.float64)
        return {
            number: score
            for found, rows in self.portions(ids)
            for number, score in zip(found, products_of(rows, wide).tolist(), strict=True)
        }

    def nearest(self, query: Array, depth: int) -> list[int]:
        """The ids of the vectors with the largest products, those with equal ones by their keys."""
        found = self.products(query, self._candidates(query, depth))
        ids, scores = np.array(list(found), np.int64), np.array(list(found.values()), np.float32)
        order = np.argsort(ids, kind="stable")
        near = best(ids[order], scores[order], depth)
        kept = dict(zip(near.ids.tolist(), near.scores.tolist(), strict=True))
        if len(set(kept.values())) == len(kept):
            return list(kept)[:depth]
        keys = self.keys(list(kept))
        return sorted(kept, key=lambda one: (-kept[one], keys[one]))[:depth]

    def _candidates(self, query: Array, depth: int) -> list[int]:
        """Ids among which the best `depth` are for certain, with all that share the last one's product."""
        rows = self.scanned(query, depth + _MORE, None)
        if len(rows) < depth + _MORE:
            return [number for number, _ in rows]
        # What is added up in float32, in whatever order, is off by less than `error`.
        error = (len(query) + 4) * 2.0**-24
        bound = rows[depth - 1][1] - 2 * error
        if rows[-1][1] < bound:
            return [number for number, product in rows if product >= bound]
        return [number for number, _ in self.scanned(query, depth + MAX_TIES, bound)]
