"""An index in a schema of a PostgreSQL database: texts, terms and vectors, changed in one transaction.

Its commit is the only point that counts: a crash at any other leaves the generation before. A query is one
transaction over one state, so what it finds is of one generation. Vectors are compared by pgvector, all of
them, and those within the bound of its rounding are scored again here, as those of a local index are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from psycopg import errors, sql

from headrace.config.search_settings import IndexStore
from headrace.errors import InvalidRequest
from headrace.ops.value import Array
from headrace.search.index import (
    MAX_SHOWN,
    Found,
    IndexBusy,
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
)
from headrace.search.phrases import phrases_of
from headrace.search.postgres.pool import PREFIX, Connection, Pool
from headrace.search.postgres.rows import add_rows, digest_of_key, remove_keys
from headrace.search.postgres.tables import FORMAT, META, SCHEMA, shielded, unshielded
from headrace.search.postgres.vectors import Vectors
from headrace.search.postgres.where import sql_of
from headrace.search.postgres.words import by_words, found_phrase, merge_postings, with_all
from headrace.search.scoring import depth_of, ranked
from headrace.search.words import words_of

MAX_NAME = 63 - len(PREFIX)
DEAD_SHARE = 0.25
_JOINED = "chunks c JOIN documents d ON d.number = c.document"


class PostgresIndex:
    """See `Index`. Several machines may read and write it."""

    def __init__(self, pool: Pool, name: str) -> None:
        if len(name) > MAX_NAME:
            raise InvalidRequest(
                f"the name {name} has {len(name)} characters, one in a database has at most {MAX_NAME}",
                param="datasets",
            )
        self._pool, self._name = pool, name

    @property
    def name(self) -> str:
        """As `Index.name`."""
        return self._name

    @property
    def exists(self) -> bool:
        """As `Index.exists`."""
        with self._pool.alone(self._name) as connection:
            found = connection.execute("SELECT to_regclass(%s)", (f'"{PREFIX}{self._name}".meta',)).fetchone()
        return found is not None and found[0] is not None

    def make(self, meta: IndexMeta) -> None:
        """Make it new and empty; IndexBusy where another has just made it."""
        self._pool.prepare(self._name)
        with self._pool.writing(self._name) as connection:
            try:
                connection.execute(f'CREATE SCHEMA "{PREFIX}{self._name}"'.encode())
            except (errors.DuplicateSchema, errors.UniqueViolation):
                raise IndexBusy(f"the index {self._name} was just made by another program") from None
            schema, owner = sql.Identifier(PREFIX + self._name), sql.Literal(shielded(meta.owner))
            connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(schema, owner))
            for statement in SCHEMA:
                connection.execute(statement.encode())
            connection.execute(
                "INSERT INTO meta (format, model, chunk_tokens, owner, details, created_s)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                (
                    FORMAT,
                    shielded(meta.model or ""),
                    meta.chunk_tokens,
                    shielded(meta.owner),
                    shielded(json.dumps(meta.details)),
                    int(time.time()),
                ),
            )

    def drop(self) -> None:
        """Delete it; IndexBusy while it is written."""
        with self._pool.writing(self._name) as connection, suppress(errors.UndefinedTable):
            connection.execute(f'DROP SCHEMA IF EXISTS "{PREFIX}{self._name}" CASCADE'.encode())

    def meta(self) -> IndexMeta:
        """As `Index.meta`."""
        with self._pool.reading(self._name) as connection:
            found = self._meta(connection)
        return IndexMeta(
            model=unshielded(found["model"]) or None,
            chunk_tokens=found["chunk_tokens"],
            owner=unshielded(found["owner"]),
            details=json.loads(unshielded(found["details"])),
        )

    def change_details(self, change: Callable[[dict[str, Any]], None]) -> None:
        """As `Index.change_details`."""
        with self._pool.writing(self._name) as connection:
            details = json.loads(unshielded(self._meta(connection, for_update=True)["details"]))
            change(details)
            connection.execute("UPDATE meta SET details = %s", (shielded(json.dumps(details)),))

    def documents(self, key: str | None = None) -> list[IndexedDocument]:
        """As `Index.documents`."""
        sql = (
            b"SELECT d.key, d.title, d.attributes, d.at_s, coalesce(sum(char_length(c.text)), 0)::bigint"
            b" FROM documents d LEFT JOIN chunks c ON c.document = d.number"
            b" WHERE %(key)s::bytea IS NULL OR d.key_digest = %(key)s GROUP BY d.number ORDER BY d.number"
        )
        with self._pool.reading(self._name) as connection:
            rows = connection.execute(sql, {"key": None if key is None else digest_of_key(key)})
            return [
                IndexedDocument(
                    unshielded(found), unshielded(title), json.loads(unshielded(attributes)), at_s, size
                )
                for found, title, attributes, at_s, size in rows
            ]

    def attributes(self, names: Collection[str] | None = None) -> list[str]:
        """As `Index.attributes`."""
        with self._pool.reading(self._name) as connection:
            if names is None:
                sql = b"SELECT DISTINCT jsonb_object_keys(filters) FROM documents LIMIT %s"
                return sorted(unshielded(str(name)) for (name,) in connection.execute(sql, (MAX_SHOWN,)))
            sql = b"SELECT 1 FROM documents WHERE filters -> %s::text IS NOT NULL LIMIT 1"
            return [name for name in names if connection.execute(sql, (shielded(name),)).fetchone()]

    def digests(self, prefix: str = "") -> dict[str, bytes]:
        """As `Index.digests`."""
        with self._pool.reading(self._name) as connection:
            rows = connection.execute(
                "SELECT key, digest FROM documents WHERE starts_with(key, %s)", (shielded(prefix),)
            )
            return {unshielded(key): bytes(digest) for key, digest in rows}

    def vectors_of(self, key: str) -> dict[str, Array]:
        """As `Index.vectors_of`."""
        with self._pool.reading(self._name) as connection:
            rows = connection.execute(
                f"SELECT c.id, c.text FROM {_JOINED} WHERE d.key_digest = %s".encode(), (digest_of_key(key),)
            ).fetchall()
            found = Vectors(connection).rows([number for number, _ in rows])
        return {unshielded(text): found[number] for number, text in rows if number in found}

    def chunks_of(self, key: str) -> list[tuple[TextSpan, str]]:
        """As `Index.chunks_of`."""
        with self._pool.reading(self._name) as connection:
            rows = connection.execute(
                f"SELECT c.start_at, c.end_at, c.text FROM {_JOINED} WHERE d.key_digest = %s"
                " ORDER BY c.position".encode(),
                (digest_of_key(key),),
            )
            return [(TextSpan(start, end), unshielded(text)) for start, end, text in rows]

    def upsert(self, rows: Sequence[IndexRow]) -> int:
        """As `Index.upsert`."""
        check_rows(rows)
        with self._pool.writing(self._name) as connection:
            meta = self._meta(connection, for_update=True)
            remove_keys(connection, [row.key for row in rows])
            return add_rows(connection, meta, rows)

    def delete(self, keys: Sequence[str]) -> int:
        """As `Index.delete`."""
        with self._pool.writing(self._name) as connection:
            self._meta(connection, for_update=True)
            found = remove_keys(connection, keys)
            if found:
                connection.execute("UPDATE meta SET generation = generation + 1")
            return found

    def query(self, query: IndexQuery) -> Found:
        """As `Index.query`: words by BM25, vectors by their product, and their weighted sum."""
        check_limit(query.limit)
        with self._pool.reading(self._name) as connection:
            return self._query(connection, query)

    def version(self) -> IndexVersion:
        """As `Index.version`."""
        with self._pool.reading(self._name) as connection:
            meta = self._meta(connection)
            row = connection.execute(
                "SELECT (SELECT count(*) FROM documents), sum(pg_total_relation_size(oid))::bigint"
                " FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
                (f'"{PREFIX}{self._name}"',),
            ).fetchone()
        assert row is not None
        return IndexVersion(
            generation=meta["generation"],
            documents=row[0],
            chunks=meta["chunks"],
            dead=meta["dead"],
            bytes=row[1],
        )

    def maintain(self, *, force: bool = False) -> bool:
        """As `Index.maintain`: writes the terms of chunks that are there anew. PostgreSQL's own autovacuum
        frees the rest."""
        with self._pool.writing(self._name) as connection:
            meta = self._meta(connection, for_update=True)
            dead = meta["dead"]
            if not dead or (dead < DEAD_SHARE * (dead + meta["chunks"]) and not force):
                return False
            merge_postings(connection)
            connection.execute("UPDATE meta SET dead = 0")
        return True

    def _meta(self, connection: Connection, *, for_update: bool = False) -> dict[str, Any]:
        """The single row; with `for_update` no other writes until the transaction ends."""
        cursor = connection.execute(f"{META}{' FOR UPDATE' if for_update else ''}".encode())
        row, columns = cursor.fetchone(), [column.name for column in cursor.description or ()]
        if row is None:
            raise IndexDamaged(
                f"the index {self._name} has no row in its table meta: delete it and ingest again"
            )
        if row[0] != FORMAT:
            raise IndexDamaged(f"the index {self._name} has format {row[0]}, this version reads {FORMAT}")
        return dict(zip(columns, row, strict=True))

    def _query(self, connection: Connection, query: IndexQuery) -> Found:
        meta = self._meta(connection)
        depth = depth_of(query.limit)
        filtered = None if query.where is None else sql_of(query.where, "d.filters")
        phrases = phrases_of(
            words_of(query.text, query.keywords), lambda phrase: found_phrase(connection, phrase)
        )
        words: dict[int, float] = {}
        if phrases is not None:
            words = by_words(connection, phrases, filtered, meta, depth)
        vectors = Vectors(connection, filtered)
        near = self._near(vectors, meta, query, depth)
        if phrases is not None and phrases.all:
            near = with_all(connection, phrases, near)
        products: dict[int, float] = {}
        if query.vector is not None and meta["size"]:
            products = vectors.products(query.vector, list({**words, **dict.fromkeys(near)}))
        chunks = _hits(connection, {**words, **dict.fromkeys(near)})
        hits = ranked(query, phrases is not None, chunks, words, near, products)
        return Found(hits, meta["generation"])

    def _near(self, vectors: Vectors, meta: Mapping[str, Any], query: IndexQuery, depth: int) -> list[int]:
        if query.vector is None or not meta["size"]:
            return []
        check_size(query.vector, meta["size"], unshielded(meta["model"]))
        return vectors.nearest(query.vector, depth)


def open_pool(store: IndexStore, where: str) -> Pool:
    """Connections to a database, which are made when they are needed."""
    return Pool(store, where)


def index_of(pool: Pool, name: str) -> PostgresIndex:
    """The index of that name in a database, which may not be there."""
    return PostgresIndex(pool, name)


def names_of(pool: Pool, owner: str) -> list[str]:
    """The indexes of an owner in a database."""
    sql = (
        b"SELECT nspname FROM pg_namespace WHERE starts_with(nspname::text, %s)"
        b" AND coalesce(obj_description(oid, 'pg_namespace'), '') = %s AND has_schema_privilege(oid, 'USAGE')"
        b" AND to_regclass(quote_ident(nspname::text) || '.meta') IS NOT NULL ORDER BY 1"
    )
    with pool.alone("") as connection:
        return [str(name)[len(PREFIX) :] for (name,) in connection.execute(sql, (PREFIX, shielded(owner)))]


def _hits(connection: Connection, ids: Iterable[int]) -> dict[int, SearchHit]:
    """The chunks of some ids, without scores."""
    sql = (
        "SELECT c.id, d.key, d.title, d.attributes, c.text, c.start_at, c.end_at, c.position"
        f" FROM {_JOINED} WHERE c.id = ANY (%s::bigint[])"
    )
    return {
        number: SearchHit(
            key=unshielded(key),
            title=unshielded(title),
            attributes=json.loads(unshielded(attributes)),
            text=unshielded(text),
            span=TextSpan(start, end),
            position=position,
            score=0.0,
        )
        for number, key, title, attributes, text, start, end, position in connection.execute(
            sql.encode(), (list(ids),)
        )
    }
