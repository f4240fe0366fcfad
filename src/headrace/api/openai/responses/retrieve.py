"""GET and DELETE /v1/responses/{id}, its input items, and POST …/cancel: responses that are kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint, Json
from headrace.api.http.errors import json_response
from headrace.api.http.sse import MEDIA_TYPE, chunks
from headrace.api.openai.responses.body import INCLUDABLE
from headrace.api.openai.responses.replay_stream import ReplayStream
from headrace.api.openai.responses.response_manager import InProgressResponse, get_response_manager
from headrace.api.openai.responses.schema import (
    DeletedResponse,
    ResponseEvent,
    ResponseItemList,
    ResponseObject,
)
from headrace.api.service import get_service
from headrace.errors import InvalidRequest

MAX_PAGE = 100
_NO_SUCH = {404: "No such response is kept for this key"}


def _parameter(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


_INCLUDE = _parameter(
    "include[]",
    {"type": "array", "items": {"enum": list(INCLUDABLE)}},
    "Known to clients, without effect: a kept response has what was included when it was made.",
)
_READ = [
    _INCLUDE,
    _parameter(
        "stream", {"type": "boolean"}, "Its events from the beginning; of one made in the background."
    ),
    _parameter("starting_after", {"type": "integer", "minimum": 0}, "Only events with greater numbers."),
    _parameter("include_obfuscation", {"type": "boolean"}, "Known to clients, without effect."),
]
_PAGE = [
    _INCLUDE,
    _parameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, "Items to return, 20 unless said."
    ),
    _parameter("order", {"enum": ["asc", "desc"]}, "From the first or (unless said) from the last item on."),
    _parameter("after", {"type": "string"}, "The id of the item that ended the page before."),
]


@Endpoint(
    "GET",
    "/v1/responses/{response_id}",
    reply=ResponseObject,
    content=chunks(ResponseEvent),
    query=_READ,
    errors=_NO_SUCH,
)
async def get_response(http: HttpRequest, response_id: str) -> Response:
    """A kept response as it is now, or the stream of one that was made in the background."""
    query = _query(http, _READ)
    stream, after = _switch(query, "stream"), _number(query, "starting_after", 0, 2**63 - 1)
    _switch(query, "include_obfuscation")
    if after is not None and not stream:
        raise InvalidRequest("starting_after needs stream=true", param="starting_after")
    manager = get_response_manager(http)
    found = await manager.find(await _owner(http), response_id)
    if not stream:
        return json_response(await manager.shown(found))
    first = 0 if after is None else after + 1
    if isinstance(found, InProgressResponse):
        if not found.response.background:
            raise _no_stream(response_id)
        return ReplayStream(found, first)
    events = await get_service(http).run_in_thread(lambda: manager.events(found, first))
    if events is None:
        raise _no_stream(response_id)
    return Response(b"".join(events), media_type=MEDIA_TYPE)


@Endpoint("DELETE", "/v1/responses/{response_id}", reply=DeletedResponse, errors=_NO_SUCH)
async def delete_response(http: HttpRequest, response_id: str) -> Response:
    """Forget a response. What continues it cannot be continued any more."""
    await get_response_manager(http).delete(await _owner(http), response_id)
    return json_response(DeletedResponse(response_id))


@Endpoint("POST", "/v1/responses/{response_id}/cancel", reply=ResponseObject, errors=_NO_SUCH)
async def cancel_response(http: HttpRequest, response_id: str) -> Response:
    """Stop a response that is made in the background; one that has ended stays as it is."""
    manager = get_response_manager(http)
    return json_response(await manager.shown(await manager.cancel(await _owner(http), response_id)))


@Endpoint(
    "GET",
    "/v1/responses/{response_id}/input_items",
    reply=ResponseItemList,
    query=_PAGE,
    errors=_NO_SUCH,
)
async def list_input_items(http: HttpRequest, response_id: str) -> Response:
    """The items of the request that made a response, without those of responses that it continues."""
    query = _query(http, _PAGE)
    limit = _number(query, "limit", 1, MAX_PAGE) or 20
    order = query.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order!r:.40}, it must be asc or desc", param="order")
    manager = get_response_manager(http)
    items = await manager.inputs(await manager.find(await _owner(http), response_id))
    if order == "desc":
        items = items[::-1]
    after = query.get("after", [None])[-1]
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


def _query(http: HttpRequest, parameters: Sequence[Json]) -> dict[str, list[str]]:
    """The query's values by name; InvalidRequest for a name or an `include` that is not known."""
    known = [str(parameter["name"]).removesuffix("[]") for parameter in parameters]
    found: dict[str, list[str]] = {}
    for key, value in http.query_params.multi_items():
        name = key.removesuffix("[]")
        if name not in known:
            raise InvalidRequest(
                f"unknown query parameter {name[:80]!r}; known: {', '.join(known)}",
                param=name[:80],
                code="unknown_parameter",
            )
        if name == "include" and value not in INCLUDABLE:
            raise InvalidRequest(
                f"include names {value!r:.80}: known are {', '.join(INCLUDABLE)}", param=name
            )
        found.setdefault(name, []).append(value)
    return found


def _switch(query: dict[str, list[str]], name: str) -> bool:
    value = query.get(name, ["false"])[-1]
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} is {value!r:.40}, it must be true or false", param=name)
    return value == "true"


def _number(query: dict[str, list[str]], name: str, low: int, high: int) -> int | None:
    if name not in query:
        return None
    value = query[name][-1]
    if not value.isascii() or not value.isdecimal() or len(value) > 19 or not low <= int(value) <= high:
        raise InvalidRequest(
            f"{name} is {value!r:.40}, it must be an integer from {low:,} to {high:,}", param=name
        )
    return int(value)
