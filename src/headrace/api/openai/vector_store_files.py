"""/v1/vector_stores/…/files and …/file_batches: what is in a vector store."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.generation import done
from headrace.api.http.query import read_query
from headrace.api.openai.vector_store_schema import (
    StoreBatchBody,
    StoreBatchObject,
    StoreContent,
    StoreFileBody,
    StoreFileContent,
    StoreFileCounts,
    StoreFileDeleted,
    StoreFileList,
    StoreFileObject,
    StoreQuery,
)
from headrace.api.openai.vector_store_work import MAX_BATCHES, VectorStores, file_objects
from headrace.api.openai.vector_stores import page_of
from headrace.search.index import Index, IndexBusy

FILES, BATCHES = "/v1/vector_stores/{store_id}/files", "/v1/vector_stores/{store_id}/file_batches"


@Endpoint("POST", FILES, body=StoreFileBody, reply=StoreFileObject)
async def add_file(http: HttpRequest, store_id: str) -> Response:
    """Add a file that was uploaded. It can be searched when the reply comes."""
    stores, body = VectorStores(http), await read_checked(StoreFileBody, http)
    index = await stores.service.run_in_thread(lambda: stores.find(store_id))
    await done(http, stores.add(index, [body.file_id], body.attributes, body.chunking_strategy))
    return json_response(await stores.service.run_in_thread(lambda: _file(index, body.file_id)))


@Endpoint("GET", FILES, reply=StoreFileList, query=StoreQuery)
async def list_store_files(http: HttpRequest, store_id: str) -> Response:
    """The files of a vector store, newest first unless `order` says otherwise."""
    stores, query = VectorStores(http), read_query(StoreQuery, http)
    found = await stores.service.run_in_thread(lambda: file_objects(stores.find(store_id)))
    return json_response(_page(found, query))


@Endpoint("GET", FILES + "/{file_id}", reply=StoreFileObject)
async def get_store_file(http: HttpRequest, store_id: str, file_id: str) -> Response:
    """A file of a vector store."""
    stores = VectorStores(http)
    return json_response(await stores.service.run_in_thread(lambda: _file(stores.find(store_id), file_id)))


@Endpoint("GET", FILES + "/{file_id}/content", reply=StoreFileContent)
async def get_store_file_content(http: HttpRequest, store_id: str, file_id: str) -> Response:
    """The passages of a file, as they are searched."""
    stores = VectorStores(http)

    def read() -> StoreFileContent:
        index = stores.find(store_id)
        _file(index, file_id)
        return StoreFileContent([StoreContent(text) for _, text in index.chunks_of(file_id)])

    return json_response(await stores.service.run_in_thread(read))


@Endpoint("DELETE", FILES + "/{file_id}", reply=StoreFileDeleted)
async def remove_file(http: HttpRequest, store_id: str, file_id: str) -> Response:
    """Remove a file from a vector store. The file itself stays."""
    stores = VectorStores(http)

    def remove() -> None:
        index = stores.find(store_id)
        _file(index, file_id)
        index.delete([file_id])
        index.change_details(lambda details: details["failed"].pop(file_id, None))
        with suppress(IndexBusy):  # words and vectors of what is gone are kept no longer than is worth it
            index.maintain()

    await stores.service.run_in_thread(remove)
    return json_response(StoreFileDeleted(file_id))


@Endpoint("POST", BATCHES, body=StoreBatchBody, reply=StoreBatchObject)
async def add_files(http: HttpRequest, store_id: str) -> Response:
    """Add files that were uploaded. They can be searched when the reply comes."""
    stores, body = VectorStores(http), await read_checked(StoreBatchBody, http)
    index = await stores.service.run_in_thread(lambda: stores.find(store_id))
    await done(http, stores.add(index, body.file_ids, body.attributes, body.chunking_strategy))
    batch_id = f"vsfb_{uuid.uuid4().hex}"
    batch = {"created_s": int(time.time()), "files": list(dict.fromkeys(body.file_ids))}

    def keep(details: dict[str, Any]) -> None:
        kept = list(details["batches"].items())[-(MAX_BATCHES - 1) :]
        details["batches"] = dict(kept) | {batch_id: batch}

    def kept() -> StoreBatchObject:
        index.change_details(keep)
        return _batch(index, batch_id)

    return json_response(await stores.service.run_in_thread(kept))


@Endpoint("GET", BATCHES + "/{batch_id}", reply=StoreBatchObject)
async def get_store_batch(http: HttpRequest, store_id: str, batch_id: str) -> Response:
    """Files that were added together."""
    stores = VectorStores(http)
    return json_response(await stores.service.run_in_thread(lambda: _batch(stores.find(store_id), batch_id)))


@Endpoint("POST", BATCHES + "/{batch_id}/cancel", reply=StoreBatchObject)
async def cancel_store_batch(http: HttpRequest, store_id: str, batch_id: str) -> Response:
    """A batch has ended when its id is known, so this changes nothing."""
    stores = VectorStores(http)
    return json_response(await stores.service.run_in_thread(lambda: _batch(stores.find(store_id), batch_id)))


@Endpoint("GET", BATCHES + "/{batch_id}/files", reply=StoreFileList, query=StoreQuery)
async def list_batch_files(http: HttpRequest, store_id: str, batch_id: str) -> Response:
    """The files of a batch that are still in the vector store."""
    stores, query = VectorStores(http), read_query(StoreQuery, http)

    def read() -> list[StoreFileObject]:
        index = stores.find(store_id)
        named = set(_files_of(index, batch_id))
        return [one for one in file_objects(index) if one.id in named]

    return json_response(_page(await stores.service.run_in_thread(read), query))


def _file(index: Index, file_id: str) -> StoreFileObject:
    found = file_objects(index, file_id)
    if not found:
        raise NotFound(f"the vector store has no file {file_id[:80]!r}")
    return found[0]


def _page(found: list[StoreFileObject], query: StoreQuery) -> StoreFileList:
    page, more = page_of(found[::-1] if query.order == "desc" else found, query)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return StoreFileList(page, more, first, last)


def _files_of(index: Index, batch_id: str) -> list[str]:
    batches = dict[str, Any](index.meta().details)["batches"]
    if batch_id not in batches:
        raise NotFound(f"the vector store has no batch {batch_id[:80]!r}")
    return batches[batch_id]["files"]


def _batch(index: Index, batch_id: str) -> StoreBatchObject:
    named = _files_of(index, batch_id)
    details = dict[str, Any](index.meta().details)
    failed = sum(name in details["failed"] for name in named)
    counts = StoreFileCounts(completed=len(named) - failed, failed=failed, total=len(named))
    created = details["batches"][batch_id]["created_s"]
    store = index.name
    return StoreBatchObject(id=batch_id, vector_store_id=store, created_at=created, file_counts=counts)
