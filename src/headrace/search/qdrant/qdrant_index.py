"""An index in collections of a Qdrant server: what is written becomes visible with one change of one point.

Vectors are compared by Qdrant, exactly, and those within the bound of its rounding are scored again here, as
those of a local index are; words are found by sparse vectors, and scored again here.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from headrace.config.search_settings import INDEX_NAME, IndexStore
from headrace.errors import InvalidRequest, StoreError
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
from headrace.search.qdrant.pool import QdrantPool
from headrace.search.qdrant.records import (
    CHUNK_FIELDS,
    DIGEST_FIELDS,
    FORMAT,
    META_ID,
    OF_INDEX,
    PAGE,
    PREFIX,
    ChunkRecord,
    DigestRecord,
    DocumentRecord,
    MetaRecord,
    Snapshot,
    chunk_collections,
    id_of,
    make_collection,
    needed_meta,
    object_in,
    one_of,
    read_meta,
)
from headrace.search.qdrant.rows import DOCUMENT_FIELDS, add_rows, documents_of, remove_keys, totals_of
from headrace.search.qdrant.vectors import QdrantVectors
from headrace.search.qdrant.where import compares, filter_of, has_attribute
from headrace.search.qdrant.words import by_words, found_phrase, with_all
from headrace.search.qdrant.writing import LEASE_S, writing
from headrace.search.scoring import depth_of, ranked
from headrace.search.where import Operator, Value
from headrace.search.words import words_of

T = TypeVar("T")
DEAD_SHARE = 0.25
TRIES = 5
MAX_LOOKED_AT = 5_000
"""Documents whose attributes are named where one is not known."""
MAX_ALIKE = 10_000
"""Documents whose texts begin alike that are told apart here for one comparison."""


class QdrantIndex:
    """See `Index`. Several machines may read and write it."""

    def __init__(self, pool: QdrantPool, name: str) -> None:
        self._pool, self._name = pool, name

    @property
    def name(self) -> str:
        """As `Index.name`."""
        return self._name

    @property
    def exists(self) -> bool:
        """As `Index.exists`."""
        with self._pool.use(self._name) as client:
            return read_meta(client, self._name) is not None

    def make(self, meta: IndexMeta) -> None:
        """Make it new and empty; IndexBusy where another has just made it."""
        record = MetaRecord(
            format=FORMAT,
            made=secrets.token_hex(16),
            model=meta.model or "",
            chunk_tokens=meta.chunk_tokens,
            owner=meta.owner,
            details=json.dumps(meta.details),
        )
        point = models.PointStruct(id=META_ID, vector={}, payload=msgspec.structs.asdict(record))
        with self._pool.use(self._name) as client:
            collection = PREFIX + self._name
            try:
                make_collection(client, collection, OF_INDEX, vectors_config={})
            except UnexpectedResponse as error:
                if error.status_code not in (400, 409) or not client.collection_exists(collection):
                    raise
                self._take_over(client, collection)
                make_collection(client, collection, OF_INDEX, vectors_config={})
            client.upsert(collection, [point], wait=True)

    def drop(self) -> None:
        """Delete it; IndexBusy while it is written."""
        with self._pool.use(self._name) as client:
            if read_meta(client, self._name) is None:
                return
            with writing(client, self._name, cleans=False) as write:
                # The index is there until its passages are not: a deletion that is killed is done again.
                for collection in chunk_collections(client, self._name):
                    write.beat()
                    client.delete_collection(collection)
                write.beat()
                client.delete_collection(PREFIX + self._name)

    def meta(self) -> IndexMeta:
        """As `Index.meta`."""
        with self._pool.use(self._name) as client:
            return needed_meta(client, self._name).as_meta

    def change_details(self, change: Callable[[dict[str, Any]], None]) -> None:
        """As `Index.change_details`."""
        with self._pool.use(self._name) as client, writing(client, self._name) as write:
            details = dict(write.meta.as_meta.details)
            change(details)
            write.commit(details=json.dumps(details))

    def documents(self, key: str | None = None) -> list[IndexedDocument]:
        """As `Index.documents`."""

        def read(snapshot: Snapshot) -> list[IndexedDocument]:
            if key is None:
                found = [
                    msgspec.convert(one.payload, DocumentRecord)
                    for one in snapshot.documents(DOCUMENT_FIELDS)
                ]
            else:
                found = list(documents_of(snapshot, [key]).values())
            return [
                IndexedDocument(one.key, one.title, one.values, one.at_s, one.characters) for one in found
            ]

        return self._read(read)

    def attributes(self, names: Collection[str] | None = None) -> list[str]:
        """As `Index.attributes`; without `names` of the first documents."""

        def read(snapshot: Snapshot) -> list[str]:
            if names is not None:
                return [name for name in names if any(snapshot.chunks([], has_attribute(name), most=1))]
            found = set[str]()
            for one in snapshot.documents(["attributes"], most=MAX_LOOKED_AT):
                found |= _attributes_of(one).keys()
            return sorted(found)[:MAX_SHOWN]

        return self._read(read)

    def digests(self, prefix: str = "") -> dict[str, bytes]:
        """As `Index.digests`."""

        def read(snapshot: Snapshot) -> dict[str, bytes]:
            every = (msgspec.convert(one.payload, DigestRecord) for one in snapshot.documents(DIGEST_FIELDS))
            return {one.key: one.bytes for one in every if one.key.startswith(prefix)}

        return self._read(read)

    def vectors_of(self, key: str) -> dict[str, Array]:
        """As `Index.vectors_of`."""

        def read(snapshot: Snapshot) -> dict[str, Array]:
            texts = {number: one.text for number, one in _chunks_of(snapshot, key)}
            if not texts or not snapshot.meta.size:
                return {}
            found = QdrantVectors(snapshot).rows(list(texts))
            return {text: found[number] for number, text in texts.items() if number in found}

        return self._read(read)

    def chunks_of(self, key: str) -> list[tuple[TextSpan, str]]:
        """As `Index.chunks_of`."""
        return self._read(lambda snapshot: [(one.span, one.text) for _, one in _chunks_of(snapshot, key)])

    def upsert(self, rows: Sequence[IndexRow]) -> int:
        """As `Index.upsert`."""
        check_rows(rows)
        with self._pool.use(self._name) as client, writing(client, self._name) as write:
            totals = totals_of(write)
            remove_keys(write, totals, [row.key for row in rows])
            changed = add_rows(write, totals, rows)
            generation = write.meta.generation + 1
            write.commit(generation=generation, **changed, **msgspec.structs.asdict(totals))
            return generation

    def delete(self, keys: Sequence[str]) -> int:
        """As `Index.delete`."""
        with self._pool.use(self._name) as client, writing(client, self._name) as write:
            totals = totals_of(write)
            found = remove_keys(write, totals, keys)
            write.commit(generation=write.meta.generation + (found > 0), **msgspec.structs.asdict(totals))
        if found:  # what was deleted is not kept; where another writes, until `maintain`
            with self._pool.use(self._name) as client, suppress(IndexBusy):
                self._sweep(client)
        return found

    def query(self, query: IndexQuery) -> Found:
        """As `Index.query`: words by BM25, vectors by their product, and their weighted sum."""
        check_limit(query.limit)
        return self._read(lambda snapshot: _answer(snapshot, query))

    def version(self) -> IndexVersion:
        """As `Index.version`. The size is that of texts and vectors: Qdrant does not say what it uses."""
        with self._pool.use(self._name) as client:
            meta = needed_meta(client, self._name)
        return IndexVersion(
            generation=meta.generation,
            documents=meta.documents,
            chunks=meta.chunks,
            dead=meta.dead,
            bytes=meta.characters + 4 * meta.size * (meta.chunks + meta.dead),
        )

    def maintain(self, *, force: bool = False) -> bool:
        """As `Index.maintain`: deletes points that no generation has any more."""
        with self._pool.use(self._name) as client:
            meta = needed_meta(client, self._name)
            if not meta.dead or (meta.dead < DEAD_SHARE * (meta.dead + meta.chunks) and not force):
                return False
            self._sweep(client)
        return True

    def _sweep(self, client: QdrantClient) -> None:
        with writing(client, self._name) as write:
            write.sweep()
            write.commit(dead=0)

    def _read(self, work: Callable[[Snapshot], T]) -> T:
        """Run `work` on one generation; again where what it had was deleted meanwhile."""
        with self._pool.use(self._name) as client:
            for _ in range(TRIES):
                meta = needed_meta(client, self._name)
                found = work(Snapshot(client, self._name, meta))
                now = needed_meta(client, self._name)
                if now.made == meta.made and now.swept <= meta.commit:
                    return found
        raise IndexBusy(
            f"the index {self._name} is maintained again and again: try again later", reason="index"
        )

    def _take_over(self, client: QdrantClient, collection: str) -> None:
        """Delete a collection that one began to make who is gone; IndexBusy where it becomes an index."""
        if read_meta(client, self._name) is None and client.count(collection).count:
            raise StoreError(
                f"the Qdrant server has a collection {collection} that is no index of Headrace: give the"
                " index another name, or delete the collection"
            )
        end_s = time.monotonic() + LEASE_S
        while time.monotonic() < end_s:
            if read_meta(client, self._name) is not None:
                raise IndexBusy(f"the index {self._name} was just made by another program", reason="index")
            time.sleep(0.2)
        client.delete_collection(collection)


def _answer(snapshot: Snapshot, query: IndexQuery) -> Found:
    meta, depth = snapshot.meta, depth_of(query.limit)
    if query.vector is not None and meta.size:
        check_size(query.vector, meta.size, meta.model)
    condition = None
    if query.where is not None:
        condition = filter_of(query.where, partial(_alike, snapshot))
    phrases = phrases_of(words_of(query.text, query.keywords), lambda phrase: found_phrase(snapshot, phrase))
    words = {} if phrases is None else by_words(snapshot, phrases, condition, depth)
    vectors, near, products = QdrantVectors(snapshot, condition), list[int](), dict[int, float]()
    if query.vector is not None and meta.size:
        near = vectors.nearest(query.vector, depth)
        if phrases is not None and phrases.all:
            near = with_all(snapshot, phrases, near)
        products = vectors.products(query.vector, list({**words, **dict.fromkeys(near)}))
    chunks = _hits(snapshot, {**words, **dict.fromkeys(near)})
    return Found(ranked(query, phrases is not None, chunks, words, near, products), meta.generation)


def _alike(
    snapshot: Snapshot, condition: models.Condition, name: str, operator: Operator, text: str
) -> list[int]:
    """The documents whose attribute begins like a text, and that compare so with all of it."""
    numbers, count = list[int](), 0
    for one in snapshot.documents(["attributes"], condition, most=MAX_ALIKE + 1):
        count += 1
        if compares(_attributes_of(one).get(name), operator, text):
            numbers.append(id_of(one))
    if count > MAX_ALIKE:
        raise InvalidRequest(
            f"more than {MAX_ALIKE:,} documents have a {name!r:.60} that begins like the text of `where`:"
            " compare with a shorter one",
            param="where",
        )
    return numbers


def _attributes_of(record: models.Record) -> dict[str, Value]:
    return object_in(msgspec.convert(record.payload, dict[str, str])["attributes"], dict[str, Value])


def _chunks_of(snapshot: Snapshot, key: str) -> list[tuple[int, ChunkRecord]]:
    """The chunks of a document in order, by their ids."""
    numbers = list(documents_of(snapshot, [key]))
    if not numbers:
        return []
    found = snapshot.chunks(CHUNK_FIELDS, one_of("document", *numbers))
    return [(id_of(one), msgspec.convert(one.payload, ChunkRecord)) for one in found]


def _hits(snapshot: Snapshot, ids: Iterable[int]) -> dict[int, SearchHit]:
    """The chunks of some ids, without scores."""
    client, meta = snapshot.client, snapshot.meta
    chunks = {
        id_of(one): msgspec.convert(one.payload, ChunkRecord)
        for some in _portions(list(ids))
        for one in client.retrieve(meta.within, some, CHUNK_FIELDS)
    }
    documents = {
        id_of(one): msgspec.convert(one.payload, DocumentRecord)
        for some in _portions(list({one.document for one in chunks.values()}))
        for one in client.retrieve(PREFIX + snapshot.name, some, DOCUMENT_FIELDS)
    }
    return {
        number: SearchHit(
            key=document.key,
            title=document.title,
            attributes=document.values,
            text=chunk.text,
            span=chunk.span,
            position=chunk.position,
            score=0.0,
        )
        for number, chunk in chunks.items()
        if (document := documents.get(chunk.document)) is not None
    }


def _portions(ids: list[int]) -> Iterable[list[Any]]:
    return (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))


def open_pool(store: IndexStore, where: str) -> QdrantPool:
    """Connections to a server, which are made when they are needed."""
    return QdrantPool(store, where)


def index_of(pool: QdrantPool, name: str) -> QdrantIndex:
    """The index of that name on a server, which may not be there."""
    return QdrantIndex(pool, name)


def names_of(pool: QdrantPool, owner: str) -> list[str]:
    """The indexes of an owner on a server."""
    with pool.use("") as client:
        every = sorted(one.name for one in client.get_collections().collections)
        names = [name[len(PREFIX) :] for name in every if name.startswith(PREFIX)]
        found = [(name, _meta_or_none(client, name)) for name in names if INDEX_NAME.fullmatch(name)]
    return [name for name, meta in found if meta is not None and meta.owner == owner]


def _meta_or_none(client: QdrantClient, name: str) -> MetaRecord | None:
    """None also where another program has made what has the name of an index."""
    try:
        return read_meta(client, name)
    except (msgspec.ValidationError, IndexDamaged):
        return None
