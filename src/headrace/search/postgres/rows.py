"""Documents into and out of an index in PostgreSQL, in the transaction of who calls."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.search.index import IndexRow, size_to_add, vectors_to_add
from headrace.search.phrases import postings_of
from headrace.search.postgres.pool import Connection
from headrace.search.postgres.tables import shielded
from headrace.search.postgres.vectors import MAX_SIZE, binary_copy
from headrace.search.postgres.where import filters_of


def add_rows(connection: Connection, meta: Mapping[str, Any], rows: Sequence[IndexRow]) -> int:
    """Add documents, none of which is there; returns the new generation."""
    given = vectors_to_add(rows, has_model=bool(meta["model"]))
    size = size_to_add(given, meta["size"], MAX_SIZE) if given else meta["size"]
    generation, first = meta["generation"] + 1, meta["rows"] + 1
    texts = [text for row in rows for text in row.texts]
    postings, words = postings_of(texts)
    number = _next_number(connection)
    _copy_documents(connection, rows, number, generation)
    _copy_chunks(connection, rows, number, first, words)
    with connection.cursor().copy("COPY vectors FROM STDIN (FORMAT binary)") as copy:
        for part in binary_copy(given, first):
            copy.write(part)
    with connection.cursor().copy("COPY postings FROM STDIN") as copy:
        for term, places, counts in postings:
            copy.write_row((term, first, places, counts))
    connection.execute(
        "UPDATE meta SET generation = %s, rows = %s, size = %s, chunks = chunks + %s, words = words + %s",
        (generation, first - 1 + len(texts), size, len(texts), sum(words)),
    )
    return generation


def remove_keys(connection: Connection, keys: Sequence[str]) -> int:
    """Remove documents; returns how many were there. Their terms stay until maintenance, without a chunk."""
    removed = connection.execute(
        "DELETE FROM documents WHERE key_digest = ANY (%s::bytea[]) RETURNING number",
        ([digest_of_key(key) for key in keys],),
    ).fetchall()
    if removed:
        connection.execute(
            "WITH gone AS (DELETE FROM chunks WHERE document = ANY (%s::bigint[]) RETURNING id, words),"
            " freed AS (DELETE FROM vectors USING gone WHERE vectors.id = gone.id)"
            " UPDATE meta SET chunks = chunks - found.count, dead = dead + found.count,"
            " words = meta.words - found.words"
            " FROM (SELECT count(*), coalesce(sum(words), 0) AS words FROM gone) found",
            ([number for (number,) in removed],),
        )
    return len(removed)


def _copy_documents(connection: Connection, rows: Sequence[IndexRow], number: int, generation: int) -> None:
    columns = b"number, key_digest, key, digest, title, attributes, filters, generation, at_s"
    with connection.cursor().copy(b"COPY documents (%b) FROM STDIN" % columns) as copy:
        for place, row in enumerate(rows, number):
            copy.write_row(
                (
                    place,
                    digest_of_key(row.key),
                    shielded(row.key),
                    row.digest,
                    shielded(row.title),
                    shielded(json.dumps(dict(row.attributes))),
                    filters_of(row.attributes),
                    generation,
                    int(time.time()),
                )
            )


def _copy_chunks(
    connection: Connection, rows: Sequence[IndexRow], document: int, first: int, words: Sequence[int]
) -> None:
    ids, sizes = itertools.count(first), iter(words)
    columns = b"id, document, position, start_at, end_at, words, text"
    with connection.cursor().copy(b"COPY chunks (%b) FROM STDIN" % columns) as copy:
        for number, row in enumerate(rows, document):
            for position, (span, text) in enumerate(zip(row.spans, row.texts, strict=True)):
                place = (next(ids), number, position, span.start, span.end, next(sizes))
                copy.write_row((*place, shielded(text)))


def _next_number(connection: Connection) -> int:
    row = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM documents").fetchone()
    assert row is not None
    return int(row[0])


def digest_of_key(key: str) -> bytes:
    """By which a key is found: an index of PostgreSQL takes no long texts."""
    return hashlib.sha256(key.encode()).digest()
