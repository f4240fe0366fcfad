"""What the points of an index in Qdrant hold, and which of them a generation has."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from headrace.errors import StoreError
from headrace.search.index import IndexDamaged, IndexMeta, TextSpan
from headrace.search.where import Value

T = TypeVar("T")
FORMAT = 1
PREFIX = "headrace_index_"
"""How the collections begin that hold an index's meta and documents."""
CHUNKS = "headrace_chunks_"
"""How those of its chunks begin: the name and the number of a write follow."""
META_ID = 0
FREE = "free"
"""The lock while nobody writes."""
OPEN = 2**53
"""The last write of a point that nobody has removed."""
PAGE = 256
ID_BITS = 32
_INDEXES = {
    "born": models.PayloadSchemaType.INTEGER,
    "gone": models.PayloadSchemaType.INTEGER,
    "lock": models.PayloadSchemaType.KEYWORD,
    "attempt": models.PayloadSchemaType.INTEGER,
    "key_digest": models.PayloadSchemaType.KEYWORD,
    "document": models.PayloadSchemaType.INTEGER,
    "terms": models.PayloadSchemaType.KEYWORD,
    "tags": models.PayloadSchemaType.KEYWORD,
    "ordered[].name": models.PayloadSchemaType.KEYWORD,
    "ordered[].p0": models.PayloadSchemaType.INTEGER,
    "ordered[].p1": models.PayloadSchemaType.INTEGER,
}
OF_INDEX = ("born", "gone", "lock", "attempt", "key_digest", "ordered[].name", "ordered[].p0", "ordered[].p1")
OF_CHUNKS = (
    *("born", "gone", "document", "terms", "tags"),
    *("ordered[].name", "ordered[].p0", "ordered[].p1"),
)


_Write = Annotated[int, Meta(ge=0, lt=2**31)]
_Count = Annotated[int, Meta(ge=0, lt=2**53)]


class MetaRecord(Struct, frozen=True, kw_only=True):
    """The one point that says what an index is. Writes have numbers: `attempt` is the last one's that began,
    `commit` the last one's that has been done; those of `aborted` never were."""

    format: int
    made: str
    model: str
    chunk_tokens: int
    owner: str
    details: str
    generation: int = 0
    attempt: _Write = 0
    commit: _Write = 0
    aborted: list[_Write] = []
    swept: _Write = 0
    """Points that were removed by this write or an earlier one may be deleted."""
    lock: str = FREE
    beat: int = 0
    size: int = 0
    within: str = ""
    """The collection of its chunks, if it has any."""
    documents: _Count = 0
    chunks: _Count = 0
    words: _Count = 0
    dead: _Count = 0
    characters: _Count = 0
    reference: float = 0.0
    """The mean of words of a chunk that weights in sparse vectors are made with."""

    @property
    def as_meta(self) -> IndexMeta:
        """How the index was made."""
        return IndexMeta(
            model=self.model or None,
            chunk_tokens=self.chunk_tokens,
            owner=self.owner,
            details=object_in(self.details, dict[str, Any]),
        )


class DocumentRecord(Struct, frozen=True, kw_only=True):
    """A document."""

    key: str
    digest: str
    title: str
    attributes: str
    at_s: int
    characters: int
    chunks: int
    words: int

    @property
    def values(self) -> dict[str, Value]:
        """Its attributes."""
        return object_in(self.attributes, dict[str, Value])


class DigestRecord(Struct, frozen=True):
    """A document's key, and what it was made from."""

    key: str
    digest: Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")]

    @property
    def bytes(self) -> bytes:
        """The digest."""
        return bytes.fromhex(self.digest)


class ChunkRecord(Struct, frozen=True, kw_only=True):
    """A chunk, without what it is found by."""

    document: int
    position: int
    start: int
    end: int
    text: str

    @property
    def span(self) -> TextSpan:
        """Where it is in its document."""
        return TextSpan(self.start, self.end)


def object_in(text: str, kind: type[T]) -> T:
    """An object of JSON; msgspec.ValidationError for anything else. It may have NaN and infinities."""
    try:
        return msgspec.convert(json.loads(text), kind)
    except ValueError as error:
        raise msgspec.ValidationError(f"no JSON in a field: {error}") from error


CHUNK_FIELDS = list(ChunkRecord.__struct_fields__)
DIGEST_FIELDS = list(DigestRecord.__struct_fields__)


def read_meta(client: QdrantClient, name: str) -> MetaRecord | None:
    """The meta of an index; None where there is none. IndexDamaged for another version's."""
    try:
        found = client.retrieve(PREFIX + name, [META_ID], with_payload=True)
    except UnexpectedResponse as error:
        if error.status_code == 404:
            return None
        raise
    payload = next((one.payload for one in found if one.id == META_ID), None)
    if payload is None or "format" not in payload:
        return None
    if payload["format"] != FORMAT:
        raise IndexDamaged(
            f"the index {name} has format {payload['format']!r:.20}, this version reads {FORMAT}"
        )
    return msgspec.convert(payload, MetaRecord)


class Snapshot(Struct, frozen=True):
    """An index as one generation has it."""

    client: QdrantClient
    name: str
    meta: MetaRecord

    def documents(
        self, fields: Sequence[str], *more: models.Condition, most: int | None = None
    ) -> Generator[models.Record]:
        """The documents that meet all conditions, in the order in which they came."""
        there = self.meta.documents
        return scrolled(self.client, PREFIX + self.name, visible(self.meta, *more), fields, there, most=most)

    def chunks(
        self, fields: Sequence[str], *more: models.Condition, most: int | None = None
    ) -> Generator[models.Record]:
        """The chunks that meet all conditions, in the order in which they came."""
        if not self.meta.within:
            return
        there, chosen = self.meta.chunks, visible(self.meta, *more)
        yield from scrolled(self.client, self.meta.within, chosen, fields, there, most=most)


def needed_meta(client: QdrantClient, name: str) -> MetaRecord:
    """The meta of an index that is there."""
    found = read_meta(client, name)
    if found is None:
        raise IndexDamaged(f"the index {name} has no collection in its Qdrant: ingest again")
    return found


def one_of(key: str, *values: int | str) -> models.FieldCondition:
    """A field that is one of some values."""
    if len(values) == 1:
        return models.FieldCondition(key=key, match=models.MatchValue(value=values[0]))
    return models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))  # pyright: ignore[reportArgumentType]  (of one type)


def within(key: str, **bounds: float) -> models.FieldCondition:
    """A number within bounds: gt, gte, lt, lte."""
    return models.FieldCondition(key=key, range=models.Range(**bounds))


def visible(meta: MetaRecord, *more: models.Condition) -> models.Filter:
    """The points of a generation that meet all of some conditions."""
    gone: list[models.Condition] = [within("gone", gt=meta.commit)]
    never: list[models.Condition] = []
    if meta.aborted:
        gone.append(one_of("gone", *meta.aborted))
        never.append(one_of("born", *meta.aborted))
    return models.Filter(
        must=[within("born", lte=meta.commit), models.Filter(should=gone), *more], must_not=never or None
    )


def scrolled(
    client: QdrantClient,
    collection: str,
    chosen: models.Filter,
    fields: Sequence[str],
    there: int,
    *,
    most: int | None = None,
) -> Generator[models.Record]:
    """Points in the order of their ids, at most `most`. IndexDamaged where they are more than are `there`."""
    offset: Any = None
    count = 0
    while True:
        page = PAGE if most is None else min(PAGE, most - count)
        if page <= 0:
            return
        found, following = client.scroll(
            collection, chosen, limit=page, offset=offset, with_payload=list(fields)
        )
        count += len(found)
        if count > there:
            raise IndexDamaged(
                f"the Qdrant server has more points in {collection} than the {there:,} that were written:"
                " delete the index and ingest again"
            )
        yield from found
        if following is None:
            return
        if not found or not isinstance(following, int) or (offset is not None and following <= offset):
            raise StoreError(f"the Qdrant server gives the points of {collection} without an end")
        offset = following


def id_of(record: models.Record | models.ScoredPoint) -> int:
    """A point's number; IndexDamaged for one that another program made."""
    if not isinstance(record.id, int):
        raise IndexDamaged("a collection of an index has points that Headrace has not made: ingest anew")
    return record.id


def make_collection(client: QdrantClient, collection: str, keys: Sequence[str], **vectors: Any) -> None:
    """A new collection of one shard, with indexes of these fields."""
    client.create_collection(collection, shard_number=1, **vectors)
    for key in keys:
        client.create_payload_index(collection, key, _INDEXES[key], wait=True)


def chunk_collections(client: QdrantClient, name: str) -> list[str]:
    """The collections of chunks of an index."""
    every = [one.name for one in client.get_collections().collections]
    return [one for one in every if one.startswith(CHUNKS) and one[len(CHUNKS) :].rpartition("_")[0] == name]
