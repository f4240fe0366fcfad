"""Vectors of an index in PostgreSQL: all are compared by pgvector, and the nearest scored again here."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.ops.value import Array
from headrace.search.postgres.pool import Connection
from headrace.search.postgres.tables import unshielded
from headrace.search.postgres.where import Sql
from headrace.search.vectors import MAX_TIES, best, products_of

MAX_SIZE = 16_000
"""Of a vector of pgvector."""
_MORE = 64
"""Vectors beyond those that are wanted with which most queries need one scan."""
_PORTION = 2048
_HEADER = 4  # bytes before the numbers of a vector


class Vectors:
    """Those of one transaction."""

    def __init__(self, connection: Connection, size: int) -> None:
        self._connection, self._size = connection, size

    def rows(self, ids: Sequence[int]) -> dict[int, Array]:
        """The vectors of some ids."""
        return {number: vector for part in self._portions(ids) for number, vector in zip(*part, strict=True)}

    def products(self, query: Array, ids: Sequence[int]) -> dict[int, float]:
        """Of each id the product of its vector with the query's."""
        wide = query.astype(np.float64)
        return {
            number: score
            for found, rows in self._portions(ids)
            for number, score in zip(found, products_of(rows, wide).tolist(), strict=True)
        }

    def nearest(self, query: Array, filtered: Sql | None, depth: int) -> list[int]:
        """The ids of the vectors with the largest products, those with equal ones by their keys."""
        found = self.products(query, self._candidates(query, filtered, depth))
        ids, scores = np.array(list(found), np.int64), np.array(list(found.values()), np.float32)
        order = np.argsort(ids, kind="stable")
        near = best(ids[order], scores[order], depth)
        kept = dict(zip(near.ids.tolist(), near.scores.tolist(), strict=True))
        if len(set(kept.values())) == len(kept):
            return list(kept)[:depth]
        keys = self._keys(list(kept))
        return sorted(kept, key=lambda one: (-kept[one], keys[one]))[:depth]

    def _candidates(self, query: Array, filtered: Sql | None, depth: int) -> list[int]:
        """Ids among which the best `depth` are for certain, with all that share the last one's product."""
        given, condition, values = text_of(query), "", list[object]()
        if filtered is not None:
            condition = (
                "WHERE v.id IN (SELECT c.id FROM chunks c JOIN documents d ON d.number = c.document"
                f" WHERE {filtered[0]})"
            )
            values = list(filtered[1])
        far = f"SELECT v.id, v.vector <#> %s::vector AS far FROM vectors v {condition}"
        nearest = f"{far} ORDER BY far LIMIT %s"
        rows = self._connection.execute(nearest.encode(), (given, *values, depth + _MORE)).fetchall()
        if len(rows) < depth + _MORE:
            return [number for number, _ in rows]
        # What pgvector adds up in float32 is off by less than `error`, for vectors of length 1.
        error = (self._size + 4) * 2.0**-24
        bound = rows[depth - 1][1] + 2 * error
        if rows[-1][1] > bound:
            return [number for number, far in rows if far <= bound]
        within = f"SELECT id FROM ({far} OFFSET 0) n WHERE far <= %s ORDER BY far, id LIMIT %s"
        rows = self._connection.execute(within.encode(), (given, *values, bound, depth + MAX_TIES))
        return [number for (number,) in rows]

    def _keys(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        rows = self._connection.execute(
            "SELECT c.id, d.key, c.position FROM chunks c JOIN documents d ON d.number = c.document"
            " WHERE c.id = ANY (%s::bigint[])",
            (list(ids),),
        )
        return {number: (unshielded(key), position) for number, key, position in rows}

    def _portions(self, ids: Sequence[int]) -> Iterator[tuple[list[int], Array]]:
        for start in range(0, len(ids), _PORTION):
            rows = self._connection.execute(
                "SELECT id, vector_send(vector) FROM vectors WHERE id = ANY (%s::bigint[])",
                (list(ids[start : start + _PORTION]),),
            ).fetchall()
            if rows:
                data = [np.frombuffer(sent, ">f4", offset=_HEADER) for _, sent in rows]
                yield [number for number, _ in rows], np.stack(data).astype(np.float32)


def binary_copy(given: Sequence[Array], first: int) -> Iterator[bytes]:
    """Vectors with ids from `first` on as COPY takes them in binary form."""
    yield b"PGCOPY\n\xff\r\n\0" + bytes(8)
    for vectors in given:
        size = vectors.shape[1]
        for number, vector in enumerate(vectors.astype(">f4"), first):
            yield struct.pack(">hiqihh", 2, 8, number, _HEADER + 4 * size, size, 0) + vector.tobytes()
        first += len(vectors)
    yield b"\xff\xff"


def text_of(vector: Array) -> str:
    """A vector as pgvector reads it, exactly."""
    return f"[{','.join(map(repr, vector.tolist()))}]"
