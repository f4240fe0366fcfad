"""The bodies of requests and replies about vector stores, as OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from headrace.api.http.body import RequestBody, Values, loose
from headrace.api.http.query import Query, page_size
from headrace.api.openai.batches import Metadata

MAX_FILES = 500
MAX_PAGE = 100
MAX_QUERIES = 16
"""Of one search: each is a search of its own."""
_QueryText = Annotated[str, Meta(min_length=1, max_length=32_768)]
_AttributeName = Annotated[str, Meta(min_length=1, max_length=64)]
Attributes = Annotated[
    dict[_AttributeName, Annotated[str, Meta(max_length=512)] | float | bool], Meta(max_length=16)
]
FileId = Annotated[str, Meta(max_length=200)]


class StaticChunks(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of chunks in tokens. They never overlap here: they are cut where the text's structure says."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)] = 0


class ChunkingStrategy(Struct, frozen=True, forbid_unknown_fields=True):
    """`auto`, or `static` with sizes."""

    type: Literal["auto", "static"] = "auto"
    static: StaticChunks | None = None


class StoreBody(RequestBody, kw_only=True):
    """A new vector store, with files that were uploaded."""

    unsupported: ClassVar[Mapping[str, Values]] = {"expires_after": (), "description": ()}

    name: Annotated[str, Meta(max_length=256)] | None = None
    file_ids: Annotated[list[FileId], Meta(max_length=MAX_FILES)] | None = None
    metadata: Metadata | None = None
    chunking_strategy: ChunkingStrategy | None = None


class StoreChange(RequestBody, kw_only=True):
    """What is to be changed of a vector store."""

    unsupported: ClassVar[Mapping[str, Values]] = {"expires_after": ()}

    name: Annotated[str, Meta(max_length=256)] | None = None
    metadata: Metadata | None = None


class StoreFileBody(RequestBody, kw_only=True):
    """A file for a vector store."""

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class StoreBatchBody(RequestBody, kw_only=True):
    """Several files for a vector store."""

    unsupported: ClassVar[Mapping[str, Values]] = {"files": ()}

    file_ids: Annotated[list[FileId], Meta(min_length=1, max_length=MAX_FILES)]
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class RankingOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`none` has no reranker; `auto` one where one is served."""

    ranker: Literal["none", "auto", "default-2024-11-15"] = "none"
    score_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0


class StoreSearchBody(RequestBody, kw_only=True):
    """A search in a vector store."""

    no_effect: ClassVar[Mapping[str, Values]] = {"rewrite_query": (False,)}

    query: _QueryText | Annotated[list[_QueryText], Meta(min_length=1, max_length=MAX_QUERIES)]
    filters: Annotated[Any, loose({"type": "object"})] = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None


class StoreQuery(Query, frozen=True):
    """The query of a list."""

    after: str | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "desc"


class StoreFileCounts(Struct, frozen=True, kw_only=True):
    """Files by what became of them."""

    completed: int
    failed: int
    total: int
    in_progress: int = 0
    cancelled: int = 0


class StoreObject(Struct, frozen=True, kw_only=True):
    """A vector store."""

    id: str
    name: str
    created_at: int
    file_counts: StoreFileCounts
    usage_bytes: int
    metadata: dict[str, str]
    last_active_at: int | None = None
    status: Literal["completed"] = "completed"
    object: Literal["vector_store"] = "vector_store"


class StoreList(Struct, frozen=True):
    """A page of vector stores."""

    data: list[StoreObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class StoreDeleted(Struct, frozen=True):
    """A vector store that is gone."""

    id: str
    deleted: Literal[True] = True
    object: Literal["vector_store.deleted"] = "vector_store.deleted"


class StoreFileError(Struct, frozen=True):
    """Why a file is not there."""

    message: str
    code: Literal["invalid_file"] = "invalid_file"


class StoreFileObject(Struct, frozen=True, kw_only=True):
    """A file of a vector store."""

    id: str
    vector_store_id: str
    created_at: int
    usage_bytes: int
    attributes: dict[str, str | int | float | bool]
    status: Literal["completed", "failed"] = "completed"
    last_error: StoreFileError | None = None
    object: Literal["vector_store.file"] = "vector_store.file"


class StoreFileList(Struct, frozen=True):
    """A page of files."""

    data: list[StoreFileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class StoreFileDeleted(Struct, frozen=True):
    """A file that the vector store has no longer."""

    id: str
    deleted: Literal[True] = True
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"


class StoreBatchObject(Struct, frozen=True, kw_only=True):
    """Files that were added together."""

    id: str
    vector_store_id: str
    created_at: int
    file_counts: StoreFileCounts
    status: Literal["completed"] = "completed"
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"


class StoreContent(Struct, frozen=True):
    """A passage."""

    text: str
    type: Literal["text"] = "text"


class StoreFileContent(Struct, frozen=True):
    """The passages of a file in order."""

    data: list[StoreContent]
    has_more: Literal[False] = False
    next_page: None = None
    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"


class StoreHit(Struct, frozen=True):
    """A passage that was found. The score is from 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | int | float | bool]
    content: list[StoreContent]


class StoreHits(Struct, frozen=True):
    """What was found, best first."""

    search_query: list[str]
    data: list[StoreHit]
    has_more: Literal[False] = False
    next_page: None = None
    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
