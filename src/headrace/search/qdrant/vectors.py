"""Vectors of an index in Qdrant, all of them compared by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from qdrant_client import models

from headrace.ops.value import Array
from headrace.search.index import IndexDamaged
from headrace.search.nearest import RemoteVectors
from headrace.search.qdrant.records import PREFIX, Snapshot, id_of, visible

DENSE = "dense"
_PORTION = 512
_EXACT = models.SearchParams(exact=True, quantization=models.QuantizationSearchParams(ignore=True))


class QdrantVectors(RemoteVectors):
    """Those of a generation that a condition allows."""

    def __init__(self, snapshot: Snapshot, condition: models.Filter | None = None) -> None:
        self._snapshot, self._condition = snapshot, condition

    def scanned(self, query: Array, limit: int, at_least: float | None) -> list[tuple[int, float]]:
        """As `RemoteVectors.scanned`."""
        chosen = visible(self._snapshot.meta, *([] if self._condition is None else [self._condition]))
        found = self._snapshot.client.query_points(
            self._snapshot.meta.within,
            query=query.tolist(),
            using=DENSE,
            query_filter=chosen,
            search_params=_EXACT,
            limit=limit,
            with_payload=False,
            score_threshold=None if at_least is None else at_least - 1e-6,
        ).points[:limit]
        return sorted(((id_of(one), one.score) for one in found), key=lambda one: (-one[1], one[0]))

    def portions(self, ids: Sequence[int]) -> Iterator[tuple[list[int], Array]]:
        """As `RemoteVectors.portions`."""
        for start in range(0, len(ids), _PORTION):
            found = self._snapshot.client.retrieve(
                self._snapshot.meta.within,
                list(ids[start : start + _PORTION]),
                with_payload=False,
                with_vectors=[DENSE],
            )
            if found:
                yield [id_of(one) for one in found], np.stack([self._read(one) for one in found])

    def keys(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """As `RemoteVectors.keys`."""
        client, meta = self._snapshot.client, self._snapshot.meta
        places = {
            id_of(one): msgspec.convert(one.payload, _Place)
            for start in range(0, len(ids), _PORTION)
            for one in client.retrieve(
                meta.within, list(ids[start : start + _PORTION]), ["document", "position"]
            )
        }
        numbers = list({one.document for one in places.values()})
        keys = {
            id_of(one): msgspec.convert(one.payload, _Key).key
            for start in range(0, len(numbers), _PORTION)
            for one in client.retrieve(
                PREFIX + self._snapshot.name, numbers[start : start + _PORTION], ["key"]
            )
        }
        return {
            one: (keys.get(at.document, ""), at.position) for one in ids if (at := places.get(one, _NOWHERE))
        }

    def _read(self, record: models.Record) -> Array:
        given = record.vector.get(DENSE) if isinstance(record.vector, dict) else None
        vector = msgspec.convert(given, list[float])
        if len(vector) != self._snapshot.meta.size:
            raise IndexDamaged(
                f"a vector of the index {self._snapshot.name} has {len(vector):,} numbers, not"
                f" {self._snapshot.meta.size:,}: delete the index and ingest again"
            )
        return np.array(vector, np.float32)


class _Place(msgspec.Struct, frozen=True):
    document: int
    position: int


class _Key(msgspec.Struct, frozen=True):
    key: str


_NOWHERE = _Place(-1, 0)
