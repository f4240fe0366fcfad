"""Documents into and out of an index in Qdrant, with one write."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from headrace.search.index import IndexRow, size_to_add, vectors_to_add
from headrace.search.qdrant.records import (
    CHUNKS,
    ID_BITS,
    OF_CHUNKS,
    OPEN,
    PREFIX,
    DocumentRecord,
    Snapshot,
    chunk_collections,
    id_of,
    make_collection,
    one_of,
)
from headrace.search.qdrant.vectors import DENSE
from headrace.search.qdrant.where import filters_of
from headrace.search.qdrant.words import SPARSE, TextWords, words_in
from headrace.search.qdrant.writing import QdrantWrite

MAX_SIZE = 65_536
"""Of a vector of Qdrant."""
DOCUMENT_FIELDS = list(DocumentRecord.__struct_fields__)
_TOGETHER = 4 * 2**20  # bytes of a request, about
_KEYS = 1000


class Totals(Struct):
    """What an index holds, as a write changes it."""

    documents: int
    chunks: int
    words: int
    dead: int
    characters: int


def totals_of(write: QdrantWrite) -> Totals:
    """What it holds before a write."""
    return msgspec.convert(write.meta, Totals, from_attributes=True)


def digest_of_key(key: str) -> str:
    """By which a key is found."""
    return hashlib.sha256(key.encode()).hexdigest()


def documents_of(snapshot: Snapshot, keys: Sequence[str]) -> dict[int, DocumentRecord]:
    """The documents of some keys, by their numbers."""
    found: dict[int, DocumentRecord] = {}
    for start in range(0, len(keys), _KEYS):
        digests = [digest_of_key(key) for key in keys[start : start + _KEYS]]
        for one in snapshot.documents(DOCUMENT_FIELDS, one_of("key_digest", *digests)):
            found[id_of(one)] = msgspec.convert(one.payload, DocumentRecord)
    return found


def remove_keys(write: QdrantWrite, totals: Totals, keys: Sequence[str]) -> int:
    """Remove documents; returns how many were there."""
    removed = documents_of(write.snapshot, keys)
    numbers = list(removed)
    for start in range(0, len(numbers), _KEYS):
        some = numbers[start : start + _KEYS]
        write.remove(PREFIX + write.snapshot.name, [models.HasIdCondition(has_id=list(some))])
        if write.meta.within:
            write.remove(write.meta.within, [one_of("document", *some)])
    for one in removed.values():
        totals.documents -= 1
        totals.chunks -= one.chunks
        totals.dead += one.chunks
        totals.words -= one.words
        totals.characters -= one.characters
    return len(removed)


def add_rows(write: QdrantWrite, totals: Totals, rows: Sequence[IndexRow]) -> dict[str, Any]:
    """Add documents, none of which is there; returns what is new in the meta besides the totals."""
    meta = write.meta
    given = vectors_to_add(rows, has_model=bool(meta.model))
    size = size_to_add(given, meta.size, MAX_SIZE) if given else meta.size
    words = words_in([text for row in rows for text in row.texts])
    changed: dict[str, Any] = {"size": size, "within": meta.within, "reference": meta.reference}
    if words and not meta.within:
        changed["within"] = f"{CHUNKS}{write.snapshot.name}_{write.number}"
        changed["reference"] = max(1.0, sum(one.words for one in words) / len(words))
        for left in chunk_collections(write.snapshot.client, write.snapshot.name):
            write.snapshot.client.delete_collection(left)  # of first writes that never were
        _make_chunks(write.snapshot.client, changed["within"], size)
    _add_all(write, PREFIX + write.snapshot.name, _documents(write, rows, words))
    if words:
        _add_all(write, changed["within"], _chunks(write, rows, words, changed["reference"]))
    totals.documents += len(rows)
    totals.chunks += len(words)
    totals.words += sum(one.words for one in words)
    totals.characters += sum(len(text) for row in rows for text in row.texts)
    return changed


def _make_chunks(client: QdrantClient, collection: str, size: int) -> None:
    dense = {DENSE: models.VectorParams(size=size, distance=models.Distance.DOT)} if size else {}
    sparse = {SPARSE: models.SparseVectorParams()}
    try:
        make_collection(client, collection, OF_CHUNKS, vectors_config=dense, sparse_vectors_config=sparse)
    except UnexpectedResponse as error:
        if error.status_code not in (400, 409) or not client.collection_exists(collection):
            raise
        # Of an index that was there before, and was not deleted to its end.
        client.delete_collection(collection)
        make_collection(client, collection, OF_CHUNKS, vectors_config=dense, sparse_vectors_config=sparse)


def _documents(
    write: QdrantWrite, rows: Sequence[IndexRow], words: Sequence[TextWords]
) -> Iterator[tuple[int, models.PointStruct]]:
    """Points with about how many bytes each has."""
    sizes = iter(words)
    for place, row in enumerate(rows):
        record = DocumentRecord(
            key=row.key,
            digest=row.digest.hex(),
            title=row.title,
            attributes=json.dumps(dict(row.attributes)),
            at_s=int(time.time()),
            characters=sum(map(len, row.texts)),
            chunks=len(row.texts),
            words=sum(next(sizes).words for _ in row.texts),
        )
        number = _number(write, place)
        payload = {
            **msgspec.structs.asdict(record),
            "born": write.number,
            "gone": OPEN,
            "document": number,
            "key_digest": digest_of_key(row.key),
            "ordered": filters_of(row.attributes)["ordered"],
        }
        yield 2 * len(record.attributes) + 2000, models.PointStruct(id=number, vector={}, payload=payload)


def _chunks(
    write: QdrantWrite, rows: Sequence[IndexRow], words: Sequence[TextWords], reference: float
) -> Iterator[tuple[int, models.PointStruct]]:
    """Points with about how many bytes each has."""
    place = 0
    for number, row in enumerate(rows):
        filters = filters_of(row.attributes)
        filters_bytes = len(json.dumps(filters))
        for position, (span, text) in enumerate(zip(row.spans, row.texts, strict=True)):
            own = words[place]
            vector: dict[str, Any] = {SPARSE: own.sparse(reference)} if own.counts else {}
            if row.vectors is not None:
                vector[DENSE] = row.vectors[position].tolist()
            payload = {
                "born": write.number,
                "gone": OPEN,
                "document": _number(write, number),
                "position": position,
                "start": span.start,
                "end": span.end,
                "text": text,
                "words": own.words,
                "terms": list(own.counts),
                "tf": own.counts,
                **filters,
            }
            size = 3 * len(text) + 100 * len(own.counts) + 25 * len(vector.get(DENSE, ())) + filters_bytes
            yield size, models.PointStruct(id=_number(write, place), vector=vector, payload=payload)
            place += 1


def _add_all(write: QdrantWrite, collection: str, points: Iterator[tuple[int, models.PointStruct]]) -> None:
    some, size = list[models.PointStruct](), 0
    for bytes_of_one, point in points:
        some.append(point)
        size += bytes_of_one
        if size > _TOGETHER:
            write.add(collection, some)
            some, size = [], 0
    if some:
        write.add(collection, some)


def _number(write: QdrantWrite, place: int) -> int:
    """Numbers grow from write to write, and no two writes have the same."""
    return (write.number << ID_BITS) + place
