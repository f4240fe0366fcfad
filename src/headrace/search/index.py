"""What an index is: documents in chunks, each with words and a vector; hybrid queries; generations."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from headrace.errors import HeadraceError, InvalidRequest, Overloaded, StoreBusy
from headrace.ops.value import Array
from headrace.search.where import Condition, Value, is_unicode

Mode = Literal["hybrid", "vector", "text"]
Attributes = Mapping[str, Value]
WEIGHTS = (0.1, 0.9)
"""Of BM25 and of the product of vectors, whose weighted sum is the score where both are there (decision
0070)."""
MAX_LIMIT = 1000
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_TEXT = 4096
MAX_KEY = 1024
MAX_SHOWN = 200
"""Names of attributes, where all are asked for."""


class IndexMissing(HeadraceError):
    """A search names something that has no index."""

    remedy = "Make the index that the message names, with the command that it says."
    status = 404
    code = "index_missing"
    kind = "invalid_request_error"


class IndexDamaged(HeadraceError):
    """Files of an index contradict each other."""

    remedy = "Delete the folder that the message names, and ingest again."
    code = "index_damaged"


class IndexBusy(StoreBusy):
    """Another program, or another request, writes to the index."""

    remedy = "Wait until it has ended; an index has one writer at a time."
    code = "index_busy"


class IndexUnreachable(Overloaded):
    """The database of an index does not answer, or refuses the user or the password."""

    remedy = "Start the database of the index, or correct its `store` and `secret` in `[search]`."
    code = "index_unreachable"


class TextSpan(Struct, frozen=True):
    """Characters [start, end) of a document."""

    start: int
    end: int


class IndexRow(Struct, frozen=True, kw_only=True):
    """A document: its `key`, by which it replaces an earlier one, a `digest` of what it was made from, and
    its chunks with their unit vectors [chunks, size] (None: an index of words alone)."""

    key: str
    digest: bytes
    title: str = ""
    attributes: Attributes = {}
    spans: tuple[TextSpan, ...] = ()
    texts: tuple[str, ...] = ()
    vectors: Array | None = None


class SearchHit(Struct, frozen=True, kw_only=True):
    """A chunk that was found, and why.

    `position` is its number in the document, from 0. Ranks are from 1, None where that part has not found it.
    `score` is what hits are ordered by: the weighted sum of both parts' scores, that of the one part where
    only one was asked for, or the reranker's.
    """

    key: str
    title: str
    attributes: Attributes
    text: str
    span: TextSpan
    position: int
    score: float
    bm25_rank: int | None = None
    bm25_score: float | None = None
    vector_rank: int | None = None
    vector_score: float | None = None
    rerank_score: float | None = None


class IndexQuery(Struct, frozen=True, kw_only=True):
    """What is looked for: `text` by its words, `vector` (of length 1) by direction; each of `keywords` must
    be in a hit; `weights` are those of BM25 and of products of vectors."""

    text: str = ""
    vector: Array | None = None
    keywords: tuple[str, ...] = ()
    where: Condition | None = None
    limit: int = 10
    weights: tuple[float, float] = WEIGHTS


class Found(Struct, frozen=True):
    """The hits of a query, best first, and the generation of the index that they are from."""

    hits: tuple[SearchHit, ...]
    generation: int


class IndexedDocument(Struct, frozen=True):
    """A document of an index; `at_s` is when it was indexed, in seconds since 1970, `characters` those of its
    chunks."""

    key: str
    title: str
    attributes: Attributes
    at_s: int
    characters: int


class IndexVersion(Struct, frozen=True, kw_only=True):
    """What an index holds. `generation` grows with every change; `dead` are rows of vectors that are not
    used any more, `bytes` the size on the disk."""

    generation: int
    documents: int
    chunks: int
    dead: int
    bytes: int


class IndexMeta(Struct, frozen=True, kw_only=True):
    """How an index was made: by which model, and tokens of a chunk. `owner` is whose it is, "" for all."""

    model: str | None
    chunk_tokens: int
    owner: str = ""
    details: Mapping[str, object] = {}


class Index(Protocol):
    """An index. All methods may be called from any thread; those that write raise IndexBusy while another
    writes, and those of an index in another machine's store IndexUnreachable while that is down."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def exists(self) -> bool:
        """Whether it has been made."""
        ...

    def meta(self) -> IndexMeta:
        """How it was made."""
        ...

    def change_details(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change what is kept with it for its owner."""
        ...

    def documents(self, key: str | None = None) -> list[IndexedDocument]:
        """The documents, oldest first; of a key alone where one is given."""
        ...

    def attributes(self, names: Collection[str] | None = None) -> list[str]:
        """The names of attributes that documents have: those of `names` that any has, or without them up to
        MAX_SHOWN of all."""
        ...

    def digests(self, prefix: str = "") -> dict[str, bytes]:
        """The digests of the documents whose keys begin so, by key."""
        ...

    def vectors_of(self, key: str) -> dict[str, Array]:
        """The vectors of a document's chunks by their texts, so that these are not computed again."""
        ...

    def chunks_of(self, key: str) -> list[tuple[TextSpan, str]]:
        """The chunks of a document in order."""
        ...

    def upsert(self, rows: Sequence[IndexRow]) -> int:
        """Add documents, or replace those with their keys, all at once; returns the new generation."""
        ...

    def delete(self, keys: Sequence[str]) -> int:
        """Remove documents by their keys; returns how many were there."""
        ...

    def query(self, query: IndexQuery) -> Found:
        """The best chunks."""
        ...

    def version(self) -> IndexVersion:
        """Its present size and generation."""
        ...

    def maintain(self, *, force: bool = False) -> bool:
        """Free what is not used any more, where that is worth it or with `force`; whether it did."""
        ...


class RemoteIndex(Index, Protocol):
    """An index in another machine's store."""

    def make(self, meta: IndexMeta) -> None:
        """Make it new and empty; IndexBusy where another has just made it."""
        ...

    def drop(self) -> None:
        """Delete it; IndexBusy while it is written."""
        ...


def check_limit(limit: int) -> None:
    """InvalidRequest unless it is from 1 to MAX_LIMIT."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit is {limit:,}, it must be 1 to {MAX_LIMIT:,}", param="limit")


def check_row(row: IndexRow) -> None:
    """InvalidRequest for keys and attributes that are too long."""
    if not 1 <= len(row.key) <= MAX_KEY:
        raise InvalidRequest(
            f"a key has {len(row.key):,} characters, it must have 1 to {MAX_KEY:,}", param="key"
        )
    for name, value in row.attributes.items():
        if (isinstance(value, float) and not math.isfinite(value)) or not is_unicode(f"{name}{value}"):
            raise InvalidRequest(
                f"the attribute {name[:60]!r} of {row.key[:80]!r} is {value!r:.60}: it must be a finite"
                " number, a text of Unicode, true or false",
                param="attributes",
            )
    long = [name for name, value in row.attributes.items() if len(str(value)) > MAX_ATTRIBUTE_TEXT]
    if long or len(row.attributes) > MAX_ATTRIBUTES:
        raise InvalidRequest(
            f"the attributes of {row.key[:80]!r} are too many or too long: at most {MAX_ATTRIBUTES} of"
            f" {MAX_ATTRIBUTE_TEXT:,} characters",
            param="attributes",
        )


def check_rows(rows: Sequence[IndexRow]) -> None:
    """InvalidRequest for a key that is there twice, and what `check_row` refuses."""
    seen: set[str] = set()
    for row in rows:
        check_row(row)
        if row.key in seen:
            raise InvalidRequest(f"the key {row.key[:80]!r} is there twice: keys are unique", param="key")
        seen.add(row.key)
        if len(row.spans) != len(row.texts) or (
            row.vectors is not None and len(row.vectors) != len(row.texts)
        ):
            raise ValueError(f"{row.key}: {len(row.texts)} texts need as many spans and vectors")


def vectors_to_add(rows: Sequence[IndexRow], *, has_model: bool) -> list[Array]:
    """The vectors of rows that have any chunks."""
    given = [row.vectors for row in rows if row.vectors is not None and len(row.texts)]
    if len(given) != (sum(bool(row.texts) for row in rows) if has_model else 0):
        raise ValueError("an index of a model has a vector for every chunk, another one has none")
    return given


def size_to_add(given: Sequence[Array], size: int, most: int) -> int:
    """The size of vectors in an index that has `size` (0: none yet); InvalidRequest where `given` differ."""
    size = size or given[0].shape[1]
    if size > most or any(one.shape[1] != size for one in given):
        raise InvalidRequest(
            f"vectors have {given[0].shape[1]:,} numbers where {min(size, most):,} are expected: an"
            " index is made by one model; make another one for another model",
            param="model",
        )
    return size


def check_size(vector: Array, size: int, model: str) -> None:
    """InvalidRequest where a query's vector has another size than those of the index."""
    if len(vector) != size:
        raise InvalidRequest(
            f"the vector has {len(vector):,} numbers, those of the index {size:,}: "
            f"use the model that made it, {model}",
            param="model",
        )
