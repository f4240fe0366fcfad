"""/v1/vector_stores: indexes of uploaded files, and searches in them; every key sees its own."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.data.search import reranker_of
from headrace.api.http.body import read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.http.query import read_query
from headrace.api.openai.vector_store_schema import (
    StoreBody,
    StoreChange,
    StoreContent,
    StoreDeleted,
    StoreHit,
    StoreHits,
    StoreList,
    StoreObject,
    StoreQuery,
    StoreSearchBody,
)
from headrace.api.openai.vector_store_work import VectorStores, store_object
from headrace.search.searching import NamedHit, SearchRequest, search_each
from headrace.search.where import read_filter


@Endpoint("POST", "/v1/vector_stores", body=StoreBody, reply=StoreObject)
async def create_store(http: HttpRequest) -> Response:
    """A new vector store, with files where some are named."""
    stores, body = VectorStores(http), await read_checked(StoreBody, http)
    run = stores.service.run_in_thread
    index = await run(lambda: stores.make(body.name or "", body.metadata or {}, body.chunking_strategy))
    if body.file_ids:
        try:
            await done(http, stores.add(index, body.file_ids, None, body.chunking_strategy))
        except BaseException:
            stores.service.indexes.delete(index.name)
            raise
    return json_response(await run(lambda: store_object(index)))


@Endpoint("GET", "/v1/vector_stores", reply=StoreList, query=StoreQuery)
async def list_stores(http: HttpRequest) -> Response:
    """The caller's vector stores, newest first unless `order` says otherwise."""
    stores, query = VectorStores(http), read_query(StoreQuery, http)
    found = await stores.service.run_in_thread(stores.all)
    page, more = page_of(found if query.order == "desc" else found[::-1], query)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(StoreList(page, more, first, last))


@Endpoint("GET", "/v1/vector_stores/{store_id}", reply=StoreObject)
async def get_store(http: HttpRequest, store_id: str) -> Response:
    """One of the caller's vector stores."""
    stores = VectorStores(http)
    return json_response(await stores.service.run_in_thread(lambda: store_object(stores.find(store_id))))


@Endpoint("POST", "/v1/vector_stores/{store_id}", body=StoreChange, reply=StoreObject)
async def change_store(http: HttpRequest, store_id: str) -> Response:
    """Change the name or the metadata of a vector store."""
    stores, body = VectorStores(http), await read_checked(StoreChange, http)

    def change(details: dict[str, Any]) -> None:
        given = {"name": body.name, "metadata": body.metadata}
        details.update({name: value for name, value in given.items() if value is not None})

    def changed() -> StoreObject:
        index = stores.find(store_id)
        index.change_details(change)
        return store_object(index)

    return json_response(await stores.service.run_in_thread(changed))


@Endpoint("DELETE", "/v1/vector_stores/{store_id}", reply=StoreDeleted)
async def delete_store(http: HttpRequest, store_id: str) -> Response:
    """Delete a vector store. The files in it stay."""
    stores = VectorStores(http)

    def delete() -> None:
        stores.service.indexes.delete(stores.find(store_id).name)

    await stores.service.run_in_thread(delete)
    return json_response(StoreDeleted(store_id))


@Endpoint("POST", "/v1/vector_stores/{store_id}/search", body=StoreSearchBody, reply=StoreHits)
async def search_store(http: HttpRequest, store_id: str) -> Response:
    """The passages of a vector store that answer a query best, or any of several queries."""
    stores, body = VectorStores(http), await read_checked(StoreSearchBody, http)
    index = await stores.service.run_in_thread(lambda: stores.find(store_id))
    options = body.ranking_options
    texts = [body.query] if isinstance(body.query, str) else body.query
    wanted = options is not None and options.ranker != "none" and stores.service.sources.able("rerank")
    request = SearchRequest(
        text="",
        limit=body.max_num_results or 10,
        where=None if body.filters is None else read_filter(body.filters),
        rerank=reranker_of(stores.service, bool(wanted)),
    )
    found = await done(http, search_each([index], texts, request, stores.service.runner, stores.call))
    hits = [store_hit(one) for one in found]
    least = 0.0 if options is None else options.score_threshold
    return json_response(StoreHits(texts, [hit for hit in hits if hit.score >= least]))


def store_hit(found: NamedHit) -> StoreHit:
    """A hit as the API shows it: with a score from 0 to 1."""
    hit = found.hit
    score = max(hit.score, 0.0)
    part = score if hit.rerank_score is not None else score / (1 + score)
    content = [StoreContent(hit.text)]
    return StoreHit(hit.key, hit.title, min(part, 1.0), dict(hit.attributes), content)


def page_of(found: list[Any], query: StoreQuery) -> tuple[list[Any], bool]:
    """Up to `limit` entries after the one that is named, and whether there are more."""
    if query.after is not None:
        places = [place for place, one in enumerate(found) if one.id == query.after]
        found = found[places[0] + 1 :] if places else []
    return found[: query.limit], len(found) > query.limit
