"""GET and DELETE /v1/responses/{id}, its input items, and POST …/cancel: responses that are kept."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import MEDIA_TYPE, chunks
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.openai.responses.body import Includable
from headrace.api.openai.responses.replay_stream import ReplayStream
from headrace.api.openai.responses.schema import (
    DeletedResponse,
    ResponseEvent,
    ResponseItemList,
    ResponseObject,
)
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.inference.response_store import UNFINISHED, InProgressResponse

MAX_PAGE = 100
_IDLE = "Known to clients, without effect."
_STREAM = "Its events from the beginning; of one made in the background."
_NO_SUCH = {404: "No such response is kept for this key"}


class IncludeQuery(Query, frozen=True, forbid_unknown_fields=True):
    """What both queries take. A kept response has what was included when it was made."""

    lists: ClassVar[tuple[str, ...]] = ("include",)
    include: Annotated[tuple[Includable, ...], Meta(description=_IDLE)] = ()


class ResponseQuery(IncludeQuery, frozen=True):
    """The query of a kept response."""

    stream: Annotated[bool, Meta(description=_STREAM)] = False
    starting_after: (
        Annotated[int, Meta(ge=0, le=2**63 - 1, description="Only events with greater numbers.")] | None
    ) = None
    include_obfuscation: Annotated[bool, Meta(description=_IDLE)] = False


class ItemsQuery(IncludeQuery, frozen=True):
    """The query of a response's input items."""

    limit: Annotated[int, page_size(MAX_PAGE)] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="From the first or from the last item on.")] = (
        "desc"
    )
    after: Annotated[str, Meta(description="The id of the item that ended the page before.")] | None = None


@Endpoint(
    "GET",
    "/v1/responses/{response_id}",
    reply=ResponseObject,
    content=chunks(ResponseEvent),
    query=ResponseQuery,
    errors=_NO_SUCH,
)
async def get_response(http: HttpRequest, response_id: str) -> Response:
    """A kept response as it is now, or the stream of one that was made in the background."""
    query = read_query(ResponseQuery, http)
    stream, after = query.stream, query.starting_after
    if after is not None and not stream:
        raise InvalidRequest("starting_after needs stream=true", param="starting_after")
    store = get_service(http).responses
    found = await store.find(await _owner(http), response_id)
    if not stream:
        return json_response(await store.shown(found))
    first = 0 if after is None else after + 1
    if isinstance(found, InProgressResponse):
        if not found.response.background:
            raise _no_stream(response_id)
        return ReplayStream(found, first)
    if found.status in UNFINISHED:
        raise InvalidRequest(
            f"another server makes {response_id}: read it without stream until it has ended", param="stream"
        )
    events = await get_service(http).run_in_thread(lambda: store.events(found, first))
    if events is None:
        raise _no_stream(response_id)
    return Response(b"".join(events), media_type=MEDIA_TYPE)


@Endpoint("DELETE", "/v1/responses/{response_id}", reply=DeletedResponse, errors=_NO_SUCH)
async def delete_response(http: HttpRequest, response_id: str) -> Response:
    """Forget a response. What continues it cannot be continued any more."""
    await get_service(http).responses.delete(await _owner(http), response_id)
    return json_response(DeletedResponse(response_id))


@Endpoint("POST", "/v1/responses/{response_id}/cancel", reply=ResponseObject, errors=_NO_SUCH)
async def cancel_response(http: HttpRequest, response_id: str) -> Response:
    """Stop a response that is made in the background; one that has ended stays as it is."""
    store = get_service(http).responses
    return json_response(await store.shown(await store.cancel(await _owner(http), response_id)))


@Endpoint(
    "GET",
    "/v1/responses/{response_id}/input_items",
    reply=ResponseItemList,
    query=ItemsQuery,
    errors=_NO_SUCH,
)
async def list_input_items(http: HttpRequest, response_id: str) -> Response:
    """The items of the request that made a response, without those of responses that it continues."""
    query = read_query(ItemsQuery, http)
    store = get_service(http).responses
    items = await store.inputs(await store.find(await _owner(http), response_id))
    if query.order == "desc":
        items = items[::-1]
    after, limit = query.after, query.limit
    if after is not None:
        ids = [item.id for item in items]
        if after not in ids:
            raise InvalidRequest(f"after is {after[:80]!r}, which is no item of this response", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    data = [msgspec.Raw(item.body) for item in page]
    return json_response(ResponseItemList(data, first_id, last_id, len(items) > limit))


async def _owner(http: HttpRequest) -> str:
    return await get_service(http).run_in_thread(call_of(http).account.owner)


def _no_stream(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"{response_id} was not made with background: true, its events are not kept: read it without stream",
        param="stream",
    )
