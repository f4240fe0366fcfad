"""`file_search` of the Responses API over the vector stores that a request names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.api.data.search import reranker_of
from headrace.api.openai.responses.items import FILE_SEARCH, FileSearchResult
from headrace.api.openai.vector_store_schema import RankingOptions
from headrace.api.openai.vector_store_work import find_store
from headrace.api.openai.vector_stores import store_hit
from headrace.api.service import Service
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.search.index import Index
from headrace.search.searching import MAX_INDEXES, MAX_TEXT, SearchRequest, search
from headrace.search.where import Condition, read_filter
from headrace.struct_types import thread_safe
from headrace.tools.tool import Arguments, ServedTools, ToolResult, ToolSpec
from headrace.tools.visible import cut, visible

MAX_RESULT = 2**16
"""Bytes of all passages of a search, which the model reads."""
_QUERY = {"query": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}}


class FileSearchFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tool as a request has it."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_INDEXES)]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] = 10
    filters: Any = None
    ranking_options: RankingOptions | None = None


class FileSearch:
    """Tools of `inner`, and a search in vector stores. See `ServedTools`."""

    spec = ToolSpec(
        name=FILE_SEARCH,
        description="Find the passages of the user's files that answer a query best.",
        parameters={
            "type": "object",
            "properties": _QUERY,
            "required": ["query"],
            "additionalProperties": False,
        },
        reads_only=True,
        idempotent=True,
    )

    def __init__(
        self, inner: ServedTools, fields: FileSearchFields, stores: list[Index], service: Service
    ) -> None:
        """InvalidRequest for filters that are none, or a ranker where none is served."""
        self._inner, self._stores, self._service = inner, stores, service
        self._where: Condition | None = None if fields.filters is None else read_filter(fields.filters)
        options = fields.ranking_options or RankingOptions()
        wanted = options.ranker != "none" and service.sources.able("rerank") is not None
        self._rerank = reranker_of(service, wanted)
        self._limit, self._least = fields.max_num_results, options.score_threshold

    def specs(self, call: CallContext) -> list[ToolSpec]:
        """See `ServedTools.specs`."""
        return [*self._inner.specs(call), self.spec]

    async def run(self, name: str, arguments: Arguments, call: CallContext, key: str = "") -> ToolResult:
        """See `ServedTools.run`."""
        if name != FILE_SEARCH:
            return await self._inner.run(name, arguments, call, key)
        query = arguments.get("query")
        if not isinstance(query, str):
            return ToolResult(text="query must be a text", is_error=True)
        request = SearchRequest(text=query, limit=self._limit, where=self._where, rerank=self._rerank)
        with call.stage("tool", tool=FILE_SEARCH):
            try:
                found = await search(self._stores, request, self._service.runner, call)
            except InvalidRequest as error:
                return ToolResult(text=error.message, is_error=True)
        hits = [hit for hit in map(store_hit, found) if hit.score >= self._least]
        shown = [
            FileSearchResult(
                file_id=one.file_id,
                filename=visible(one.filename),
                text=cut(visible(one.content[0].text), MAX_RESULT // 2)[0],
                score=one.score,
                attributes=one.attributes or None,
            )
            for one in hits
        ]
        kept = _within_bytes(shown)
        text = msgspec.json.encode(kept).decode()
        return ToolResult(text=text, cut=len(kept) < len(shown))


def _within_bytes(passages: list[FileSearchResult]) -> list[FileSearchResult]:
    """The best that are MAX_RESULT bytes together at most."""
    left = MAX_RESULT
    for number, one in enumerate(passages):
        left -= len(msgspec.json.encode(one)) + 1
        if left < 0:
            return passages[:number]
    return passages


async def with_file_search(
    inner: ServedTools, given: Mapping[str, Any], where: str, call: CallContext, service: Service
) -> FileSearch:
    """The tools with a search in the vector stores that a tool of a request names, which are the caller's.
    InvalidRequest for fields that are wrong, NotFound for a store that is not there."""
    fields = {name: value for name, value in given.items() if value is not None}
    try:
        checked = msgspec.convert(fields, thread_safe(FileSearchFields))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}: {error}", param="tools") from None

    def stores() -> list[Index]:
        owner = call.account.owner()
        return [find_store(service, one, owner) for one in dict.fromkeys(checked.vector_store_ids)]

    return FileSearch(inner, checked, await service.run_in_thread(stores), service)
