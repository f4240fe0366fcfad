"""An index in a folder: texts, words and documents in SQLite, vectors in files beside it.

Vectors are written first, as rows that no reader knows of; then one transaction of SQLite makes texts, words
and vectors visible together. So a crash at any point leaves the old generation or the new one. A chunk's id
is the row of its vector and is never used again, until `maintain` writes all files anew.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headrace.ops.value import Array
from headrace.search.index import (
    MAX_SHOWN,
    Found,
    IndexDamaged,
    IndexedDocument,
    IndexMeta,
    IndexQuery,
    IndexRow,
    IndexVersion,
    SearchHit,
    TextSpan,
    check_limit,
    check_rows,
    check_size,
    size_to_add,
    vectors_to_add,
)
from headrace.search.scoring import depth_of, ranked
from headrace.search.tables import FILE, make_file, meta_of, reading, set_meta, writing
from headrace.search.vectors import MAX_SIZE, Mask, Nearest, VectorFiles
from headrace.search.where import path_of, sql_of
from headrace.search.words import match_of

T = TypeVar("T")
DEAD_SHARE = 0.25
TRIES = 3
_JOINED = "chunks c JOIN documents d ON d.number = c.document"


class LocalIndex:
    """See `Index`. Several processes may read and write it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._vectors: VectorFiles | None = None

    @classmethod
    def make(cls, folder: Path, meta: IndexMeta) -> LocalIndex:
        """A new, empty index."""
        make_file(
            folder,
            {
                "model": meta.model or "",
                "chunk_tokens": meta.chunk_tokens,
                "owner": meta.owner,
                "details": json.dumps(meta.details),
                "created_s": int(time.time()),
            },
        )
        return cls(folder)

    @property
    def name(self) -> str:
        """As `Index.name`: that of the folder."""
        return self.folder.name

    @property
    def exists(self) -> bool:
        """As `Index.exists`."""
        return (self.folder / FILE).is_file()

    def meta(self) -> IndexMeta:
        """As `Index.meta`."""
        with reading(self.folder) as connection:
            found = meta_of(connection)
        return IndexMeta(
            model=str(found["model"]) or None,
            chunk_tokens=int(found["chunk_tokens"]),
            owner=str(found["owner"]),
            details=json.loads(str(found["details"])),
        )

    def change_details(self, change: Callable[[dict[str, Any]], None]) -> None:
        """As `Index.change_details`."""
        with writing(self.folder) as connection:
            details = json.loads(str(meta_of(connection)["details"]))
            change(details)
            set_meta(connection, {"details": json.dumps(details)})

    def documents(self, key: str | None = None) -> list[IndexedDocument]:
        """As `Index.documents`."""
        sql = (
            "SELECT d.key, d.title, d.attributes, d.at_s, coalesce(sum(length(c.text)), 0) FROM documents d"
            " LEFT JOIN chunks c ON c.document = d.number WHERE ?1 IS NULL OR d.key = ?1 GROUP BY d.number"
        )
        with reading(self.folder) as connection:
            return [
                IndexedDocument(key, title, json.loads(attributes), at_s, size)
                for key, title, attributes, at_s, size in connection.execute(sql, (key,))
            ]

    def attributes(self, names: Collection[str] | None = None) -> list[str]:
        """As `Index.attributes`."""
        with reading(self.folder) as connection:
            if names is None:
                sql = "SELECT DISTINCT j.key FROM documents d, json_each(d.attributes) j LIMIT ?"
                return sorted(str(name) for (name,) in connection.execute(sql, (MAX_SHOWN,)))
            sql = "SELECT 1 FROM documents WHERE json_type(attributes, ?) IS NOT NULL LIMIT 1"
            return [name for name in names if connection.execute(sql, (path_of(name),)).fetchone()]

    def digests(self, prefix: str = "") -> dict[str, bytes]:
        """As `Index.digests`."""
        with reading(self.folder) as connection:
            rows = connection.execute(
                "SELECT key, digest FROM documents WHERE substr(key, 1, length(?1)) = ?1", (prefix,)
            )
            return dict(rows)

    def vectors_of(self, key: str) -> dict[str, Array]:
        """As `Index.vectors_of`."""

        def read(connection: sqlite3.Connection) -> dict[str, Array]:
            rows = connection.execute(
                f"SELECT c.id, c.text FROM {_JOINED} WHERE d.key = ?", (key,)
            ).fetchall()
            meta = meta_of(connection)
            if not rows or not meta["size"]:
                return {}
            ids = np.array([row[0] - 1 for row in rows], np.int64)
            vectors = self._files(meta).rows(ids, int(meta["rows"]))
            return {text: vector for (_, text), vector in zip(rows, vectors, strict=True)}

        return self._read(read)

    def chunks_of(self, key: str) -> list[tuple[TextSpan, str]]:
        """As `Index.chunks_of`."""
        with reading(self.folder) as connection:
            rows = connection.execute(
                f"SELECT c.start, c.end, c.text FROM {_JOINED} WHERE d.key = ? ORDER BY c.position", (key,)
            )
            return [(TextSpan(start, end), text) for start, end, text in rows]

    def upsert(self, rows: Sequence[IndexRow]) -> int:
        """As `Index.upsert`. Of several rows with one key InvalidRequest; InvalidRequest, too, where vectors
        are of another size than those that are there."""
        check_rows(rows)
        with writing(self.folder) as connection:
            meta = meta_of(connection)
            for row in rows:
                _remove(connection, row.key)
            first = int(meta["rows"])
            meta |= self._add_vectors(meta, rows)
            meta["generation"] = int(meta["generation"]) + 1
            for row in rows:
                _add(connection, row, first + 1, int(meta["generation"]))
                first += len(row.texts)
            set_meta(connection, meta | {"rows": first})
            return int(meta["generation"])

    def delete(self, keys: Sequence[str]) -> int:
        """As `Index.delete`."""
        with writing(self.folder) as connection:
            found = sum(_remove(connection, key) for key in keys)
            if found:
                set_meta(connection, {"generation": int(meta_of(connection)["generation"]) + 1})
            return found

    def query(self, query: IndexQuery) -> Found:
        """As `Index.query`: words by BM25, vectors by their product, and their weighted sum."""
        check_limit(query.limit)
        return self._read(lambda connection: self._query(connection, query))

    def version(self) -> IndexVersion:
        """As `Index.version`."""
        with reading(self.folder) as connection:
            (generation,) = _one(connection, "SELECT value FROM meta WHERE name = 'generation'")
            (documents,) = _one(connection, "SELECT count(*) FROM documents")
            (chunks,) = _one(connection, "SELECT count(*) FROM chunks")
            (dead,) = _one(connection, "SELECT count(*) FROM dead")
        size = sum(path.stat().st_size for path in self.folder.iterdir())
        return IndexVersion(generation=generation, documents=documents, chunks=chunks, dead=dead, bytes=size)

    def maintain(self, *, force: bool = False) -> bool:
        """As `Index.maintain`: writes the vectors that are used into new files."""
        with writing(self.folder) as connection:
            meta = meta_of(connection)
            (dead,) = _one(connection, "SELECT count(*) FROM dead")
            if not dead or (dead < DEAD_SHARE * int(meta["rows"]) and not force):
                return False
            ids = [number for (number,) in connection.execute("SELECT id FROM chunks ORDER BY id")]
            new = int(meta["files"]) + 1
            if meta["size"]:
                meta["error"] = self._copy(meta, ids, new)
            # Ascending, and none becomes larger: no two ever have the same.
            connection.executemany("UPDATE chunks SET id = ? WHERE id = ?", enumerate(ids, 1))
            connection.execute("DELETE FROM dead")
            connection.execute("INSERT INTO words (words) VALUES ('rebuild')")
            set_meta(connection, meta | {"files": new, "rows": len(ids)})
        with writing(self.folder) as connection:
            connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._forget_files(new)
        return True

    def _copy(self, meta: Mapping[str, str | int | float], ids: Sequence[int], number: int) -> float:
        """Write the vectors of some chunks into the files of that number; the largest error of their int8."""
        old, new = self._files(meta), VectorFiles(self.folder, number, int(meta["size"]))
        for path in (new.floats, new.codes):
            path.unlink(missing_ok=True)  # of a compaction that was not finished
        error = 0.0
        for start in range(0, len(ids), 8192):
            part = np.array(ids[start : start + 8192], np.int64) - 1
            error = max(error, new.append(start, old.rows(part, int(meta["rows"]))))
        return error

    def _forget_files(self, number: int) -> None:
        """Delete vectors of earlier compactions. Readers that have them mapped keep them."""
        for path in self.folder.glob("vectors-*"):
            if path.stem != f"vectors-{number}":
                path.unlink(missing_ok=True)

    def _add_vectors(
        self, meta: Mapping[str, str | int | float], rows: Sequence[IndexRow]
    ) -> dict[str, int | float]:
        given = vectors_to_add(rows, has_model=bool(meta["model"]))
        if not given:
            return {}
        size = size_to_add(given, int(meta["size"]), MAX_SIZE)
        files = self._files({**meta, "size": size})
        error = files.append(int(meta["rows"]), np.concatenate(given))
        return {"size": size, "error": max(float(meta["error"]), error)}

    def _files(self, meta: Mapping[str, str | int | float]) -> VectorFiles:
        number, size = int(meta["files"]), int(meta["size"])
        files = VectorFiles(self.folder, number, size)
        if self._vectors is None or self._vectors.floats != files.floats or self._vectors.size != size:
            self._vectors = files
        return self._vectors

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on one state of the index; again where a compaction took its files away."""
        for _ in range(TRIES):
            try:
                with reading(self.folder) as connection:
                    return work(connection)
            except FileNotFoundError:
                self._vectors = None
        raise IndexDamaged(f"the vectors of {self.folder} are gone: delete the folder and ingest again")

    def _query(self, connection: sqlite3.Connection, query: IndexQuery) -> Found:
        meta = meta_of(connection)
        depth = depth_of(query.limit)
        filtered = None if query.where is None else sql_of(query.where, "d.attributes")
        match = match_of(query.text, query.keywords)
        words = _by_words(connection, match, filtered, depth)
        nearest = self._by_vector(connection, meta, query, filtered, depth)
        near = [] if nearest is None else _ties_by_key(connection, nearest, depth)
        if query.keywords:
            near = _with_words(connection, near, query.keywords)
        products = self._products(meta, query, list({**words, **dict.fromkeys(near)}))
        chunks = _hits(connection, {**words, **dict.fromkeys(near)})
        hits = ranked(query, match is not None, chunks, words, near, products)
        return Found(hits, int(meta["generation"]))

    def _products(
        self, meta: Mapping[str, str | int | float], query: IndexQuery, ids: Sequence[int]
    ) -> dict[int, float]:
        """Of each id the product of its vector with the query's."""
        if query.vector is None or not meta["size"] or not ids:
            return {}
        rows = np.array(ids, np.int64) - 1
        found = self._files(meta).products(query.vector, rows, int(meta["rows"]))
        return dict(zip(ids, found.tolist(), strict=True))

    def _by_vector(
        self,
        connection: sqlite3.Connection,
        meta: Mapping[str, str | int | float],
        query: IndexQuery,
        filtered: tuple[str, list[str | int | float]] | None,
        depth: int,
    ) -> Nearest | None:
        if query.vector is None or not meta["size"]:
            return None
        check_size(query.vector, int(meta["size"]), str(meta["model"]))
        count = int(meta["rows"])
        allowed = _allowed(connection, count, filtered)
        return self._files(meta).nearest(query.vector, count, allowed, depth, float(meta["error"]))


def _add(connection: sqlite3.Connection, row: IndexRow, first: int, generation: int) -> None:
    # Names of attributes as they are: SQLite looks for no escaped ones.
    attributes = json.dumps(dict(row.attributes), ensure_ascii=False)
    found = connection.execute(
        "INSERT INTO documents (key, digest, title, attributes, generation, at_s) VALUES (?, ?, ?, ?, ?, ?)",
        (row.key, row.digest, row.title, attributes, generation, int(time.time())),
    )
    parts = list(enumerate(zip(row.spans, row.texts, strict=True)))
    connection.executemany(
        "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)",
        [(first + at, found.lastrowid, at, span.start, span.end, text) for at, (span, text) in parts],
    )
    connection.executemany(
        "INSERT INTO words (rowid, text) VALUES (?, ?)", [(first + at, text) for at, (_, text) in parts]
    )


def _remove(connection: sqlite3.Connection, key: str) -> bool:
    found = connection.execute("SELECT number FROM documents WHERE key = ?", (key,)).fetchone()
    if found is None:
        return False
    connection.execute(
        "INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM chunks WHERE document = ?",
        found,
    )
    connection.execute("INSERT INTO dead SELECT id FROM chunks WHERE document = ?", found)
    connection.execute("DELETE FROM chunks WHERE document = ?", found)
    connection.execute("DELETE FROM documents WHERE number = ?", found)
    return True


def _one(connection: sqlite3.Connection, sql: str) -> tuple[int, ...]:
    return connection.execute(sql).fetchone()


def _allowed(
    connection: sqlite3.Connection, count: int, filtered: tuple[str, list[str | int | float]] | None
) -> Mask | None:
    """Which rows of vectors may be found; None for all."""
    if filtered is None:
        dead = _ids(connection.execute("SELECT id FROM dead"))
        if not len(dead):
            return None
        allowed = np.ones(count, np.bool_)
        allowed[dead - 1] = False
        return allowed
    allowed = np.zeros(count, np.bool_)
    # The condition is computed once for each document, in this order of the tables.
    sql = f"SELECT c.id FROM documents d CROSS JOIN chunks c ON c.document = d.number WHERE {filtered[0]}"
    allowed[_ids(connection.execute(sql, filtered[1])) - 1] = True
    return allowed


def _ids(rows: Iterable[tuple[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter((number for (number,) in rows), np.int64)


def _by_words(
    connection: sqlite3.Connection,
    match: str | None,
    filtered: tuple[str, list[str | int | float]] | None,
    depth: int,
) -> dict[int, float]:
    """Ids with their BM25 (larger is better), best first, equal ones by id."""
    if match is None:
        return {}
    source, condition, values = "words w", "", list[str | int | float]()
    if filtered is not None:
        source += " JOIN chunks c ON c.id = w.rowid JOIN documents d ON d.number = c.document"
        condition, values = f" AND {filtered[0]}", filtered[1]
    order = "ORDER BY w.rank, w.rowid LIMIT ?"
    sql = f"SELECT w.rowid, w.rank FROM {source} WHERE words MATCH ?{condition} {order}"
    return {number: -score for number, score in connection.execute(sql, (match, *values, depth))}


def _with_words(connection: sqlite3.Connection, ids: Sequence[int], keywords: Sequence[str]) -> list[int]:
    """Those ids whose text has all keywords."""
    match = match_of("", keywords)
    if match is None:
        return list(ids)
    sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid IN (SELECT value FROM json_each(?))"
    found = {number for (number,) in connection.execute(sql, (match, json.dumps(list(ids))))}
    return [one for one in ids if one in found]


def _ties_by_key(connection: sqlite3.Connection, nearest: Nearest, depth: int) -> list[int]:
    """Ids in order, those with equal scores by their keys, up to `depth`."""
    ids = [row + 1 for row in nearest.ids.tolist()]
    scores = dict(zip(ids, nearest.scores.tolist(), strict=True))
    if len(set(scores.values())) == len(ids):
        return ids[:depth]
    sql = f"SELECT c.id, d.key, c.position FROM {_JOINED} WHERE c.id IN (SELECT value FROM json_each(?))"
    keys = {number: (key, at) for number, key, at in connection.execute(sql, (json.dumps(ids),))}
    return sorted(ids, key=lambda one: (-scores[one], keys[one]))[:depth]


def _hits(connection: sqlite3.Connection, ids: Iterable[int]) -> dict[int, SearchHit]:
    """The chunks of some ids, without scores."""
    sql = (
        f"SELECT c.id, d.key, d.title, d.attributes, c.text, c.start, c.end, c.position FROM {_JOINED}"
        " WHERE c.id IN (SELECT value FROM json_each(?))"
    )
    return {
        number: SearchHit(
            key=key,
            title=title,
            attributes=json.loads(attributes),
            text=text,
            span=TextSpan(start, end),
            position=position,
            score=0.0,
        )
        for number, key, title, attributes, text, start, end, position in connection.execute(
            sql, (json.dumps(list(ids)),)
        )
    }
