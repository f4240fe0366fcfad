"""Vector stores as indexes that belong to a key: their files, and searches in them.

A file is read, cut and embedded while its request waits, so no file is ever in progress.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest

from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.errors import NotFound
from headrace.api.openai.files import file_not_found
from headrace.api.openai.vector_store_schema import (
    Attributes,
    ChunkingStrategy,
    StoreFileCounts,
    StoreFileError,
    StoreFileObject,
    StoreObject,
)
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.search.documents import DocumentFailed, SearchDocument, digest_of
from headrace.search.embedding import CHUNK_TOKENS, IndexModel
from headrace.search.index import Index, IndexedDocument, IndexMeta, IndexMissing
from headrace.search.ingest import Ingestion
from headrace.storage.files import Files

MAX_STORES = 1000
MAX_BATCHES = 1000


class VectorStores:
    """The vector stores of the key of a request."""

    def __init__(self, http: HttpRequest) -> None:
        self.service: Service = get_service(http)
        self.call: HttpCall = call_of(http)

    @property
    def owner(self) -> str:
        """Whose they are. Indexes that `headrace ingest` makes have none."""
        return _owner(self.call.account.owner())

    def make(self, name: str, metadata: dict[str, str], strategy: ChunkingStrategy | None) -> Index:
        """A new one; InvalidRequest where no model embeds, or there are too many."""
        model = self.service.sources.able("embed")
        if model is None:
            raise InvalidRequest("no model that is served can embed texts: serve one, such as embed")
        if len(self.service.indexes.names(self.owner)) >= MAX_STORES:
            raise InvalidRequest(f"this key has {MAX_STORES:,} vector stores, which is the most: delete some")
        details: dict[str, object] = {
            "name": name,
            "metadata": metadata,
            "created_s": int(time.time()),
            "failed": {},
            "batches": {},
        }
        tokens = chunk_tokens(strategy, self.call) or CHUNK_TOKENS
        meta = IndexMeta(model=model, chunk_tokens=tokens, owner=self.owner, details=details)
        return self.service.indexes.find_or_make(f"vs_{uuid.uuid4().hex}", meta)

    def find(self, store_id: str) -> Index:
        """The vector store of that id; NotFound."""
        return find_store(self.service, store_id, self.call.account.owner())

    def all(self) -> list[StoreObject]:
        """The key's vector stores, newest first."""
        stores = [store_object(self.find(name)) for name in self.service.indexes.names(self.owner)]
        return sorted(stores, key=lambda one: (one.created_at, one.id), reverse=True)

    async def add(
        self,
        index: Index,
        file_ids: Sequence[str],
        attributes: Attributes | None,
        strategy: ChunkingStrategy | None,
    ) -> None:
        """Index files; NotFound for one that is not the key's. What cannot be read is marked as failed."""
        tokens = chunk_tokens(strategy, self.call)
        meta = await self.service.run_in_thread(index.meta)
        model = IndexModel(self.service.runner, meta.model or "")
        ingestion = Ingestion(index, model, self.call, tokens)
        failed: dict[str, str] = {}
        for file_id in dict.fromkeys(file_ids):
            try:
                await ingestion.add(await self._document(file_id, attributes or {}, ingestion.made_by))
            except DocumentFailed as error:
                failed[file_id] = error.message

        def mark(details: dict[str, Any]) -> None:
            kept = {key: value for key, value in details["failed"].items() if key not in file_ids}
            details["failed"] = kept | failed

        await ingestion.flush()
        await ingestion.remove(list(failed))
        await self.service.run_in_thread(lambda: index.change_details(mark))

    async def _document(
        self, file_id: str, attributes: Attributes, made_by: tuple[object, ...]
    ) -> SearchDocument:
        files, owner = Files(self.service.database), self.call.account.owner()

        def read() -> SearchDocument:
            stored = files.get(owner, file_id) if self.service.database.exists else None
            if stored is None:
                raise file_not_found(file_id, "file_id")
            data = b"".join(files.parts(file_id))
            text = self.service.documents.read(stored.filename, data)
            return SearchDocument(
                key=file_id,
                text=text.text,
                title=stored.filename,
                attributes=attributes,
                digest=digest_of(data, attributes, made_by),
            )

        return await self.service.documents_in_thread(read)


def find_store(service: Service, store_id: str, account: str) -> Index:
    """The vector store of that id which an account has; NotFound."""
    try:
        return service.indexes.find(store_id, _owner(account))
    except (IndexMissing, InvalidRequest):
        raise NotFound(f"there is no vector store {store_id[:80]!r}") from None


def _owner(account: str) -> str:
    return f"key:{account}"


def chunk_tokens(strategy: ChunkingStrategy | None, call: HttpCall) -> int | None:
    """Tokens of a chunk where a strategy says them; a warning for an overlap, which chunks never have."""
    if strategy is None or strategy.static is None:
        return None
    if strategy.static.chunk_overlap_tokens:
        call.warn("chunking_strategy", "chunk_overlap_tokens has no effect: chunks are cut by structure")
    return strategy.static.max_chunk_size_tokens


def store_object(index: Index) -> StoreObject:
    """A vector store as the API shows it."""
    details, version = dict[str, Any](index.meta().details), index.version()
    failed = len(details["failed"])
    counts = StoreFileCounts(completed=version.documents, failed=failed, total=version.documents + failed)
    return StoreObject(
        id=index.name,
        name=details["name"],
        created_at=details["created_s"],
        file_counts=counts,
        usage_bytes=version.bytes,
        metadata=details["metadata"],
    )


def file_objects(index: Index, file_id: str | None = None) -> list[StoreFileObject]:
    """The files of a vector store, oldest first; of one id where it is given."""
    store = index.name
    found = [_file_object(store, one) for one in index.documents(file_id)]
    details = dict[str, Any](index.meta().details)
    found += [
        StoreFileObject(
            id=name,
            vector_store_id=store,
            created_at=details["created_s"],
            usage_bytes=0,
            attributes={},
            status="failed",
            last_error=StoreFileError(message),
        )
        for name, message in details["failed"].items()
        if file_id in (None, name)
    ]
    return found


def _file_object(store: str, document: IndexedDocument) -> StoreFileObject:
    return StoreFileObject(
        id=document.key,
        vector_store_id=store,
        created_at=document.at_s,
        usage_bytes=document.characters,
        attributes=dict(document.attributes),
    )
