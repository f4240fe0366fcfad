"""Vectors of an index in PostgreSQL, compared by pgvector."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.ops.value import Array
from headrace.search.nearest import RemoteVectors
from headrace.search.postgres.pool import Connection
from headrace.search.postgres.tables import unshielded
from headrace.search.postgres.where import Sql

MAX_SIZE = 16_000
"""Of a vector of pgvector."""
_PORTION = 2048
_HEADER = 4  # bytes before the numbers of a vector


class Vectors(RemoteVectors):
    """Those of one transaction that a condition allows."""

    def __init__(self, connection: Connection, filtered: Sql | None = None) -> None:
        self._connection, self._filtered = connection, filtered

    def scanned(self, query: Array, limit: int, at_least: float | None) -> list[tuple[int, float]]:
        """As `RemoteVectors.scanned`: pgvector's <#> is the negative product."""
        condition, values = "", list[object]()
        if self._filtered is not None:
            condition = (
                "WHERE v.id IN (SELECT c.id FROM chunks c JOIN documents d ON d.number = c.document"
                f" WHERE {self._filtered[0]})"
            )
            values += self._filtered[1]
        far = f"SELECT v.id, v.vector <#> %s::vector AS far FROM vectors v {condition}"
        sql = f"{far} ORDER BY far LIMIT %s"
        if at_least is not None:
            sql = f"SELECT id, far FROM ({far} OFFSET 0) n WHERE far <= %s ORDER BY far, id LIMIT %s"
            values.append(-at_least)
        rows = self._connection.execute(sql.encode(), (text_of(query), *values, limit)).fetchall()
        return [(number, -far) for number, far in rows]

    def keys(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """As `RemoteVectors.keys`."""
        rows = self._connection.execute(
            "SELECT c.id, d.key, c.position FROM chunks c JOIN documents d ON d.number = c.document"
            " WHERE c.id = ANY (%s::bigint[])",
            (list(ids),),
        )
        return {number: (unshielded(key), position) for number, key, position in rows}

    def portions(self, ids: Sequence[int]) -> Iterator[tuple[list[int], Array]]:
        """As `RemoteVectors.portions`."""
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
