"""GET /v1/requests, /v1/requests/{id} and /v1/requests/{id}/explain: requests that have ended."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.storage.request_log import LogFilter, LoggedRequest, Outcome
from headrace.telemetry.explain_node import ExplainNode

MAX_PAGE = 1000


class EndedRequest(Struct, frozen=True, kw_only=True):
    """A request that has ended. `created` are Unix seconds; null is what is not known or there was none of.
    A stream that failed has the HTTP status with which it began."""

    id: str
    created: float
    endpoint: str
    model: str | None
    status: Outcome
    http_status: int
    error: str | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    duration_s: float
    ttft_s: float | None
    key: str | None
    trace_id: str | None
    object: Literal["request"] = "request"


class EndedRequestDetail(EndedRequest, frozen=True, kw_only=True):
    """The same with what the client sent, as text, where the server keeps that (`log_content`)."""

    body: str | None


class RequestPage(Struct, frozen=True, kw_only=True):
    """Requests, newest first. `last_id` is `after` of the next page."""

    data: list[EndedRequest]
    has_more: bool
    last_id: str | None
    object: Literal["list"] = "list"


class RequestsQuery(Query, frozen=True, kw_only=True):
    """Which requests are listed."""

    status: Annotated[
        Literal["any", "completed", "failed", "cancelled"], Meta(description="What became of them.")
    ] = "any"
    model: str | None = None
    endpoint: Annotated[str, Meta(description="The path that was asked.")] | None = None
    key: Annotated[str, Meta(description="Name of the key that asked.")] | None = None
    since: Annotated[float, Meta(ge=0, description="Unix seconds: those that came later.")] = 0.0
    after: Annotated[str, Meta(description="`last_id` of the page before.")] | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = 50


@Endpoint("GET", "/v1/requests", reply=RequestPage, query=RequestsQuery)
async def list_requests(http: HttpRequest) -> Response:
    """The requests of the caller's key, or with the scope admin of all keys, newest first."""
    query = read_query(RequestsQuery, http)
    wanted = LogFilter(
        status=None if query.status == "any" else query.status,
        model=query.model,
        endpoint=query.endpoint,
        key_name=query.key,
        since_s=query.since,
        after=query.after,
        limit=query.limit + 1,
    )
    log, reader = get_service(http).requests, call_of(http).account
    found = await log.page(wanted, reader)
    if not found and query.after is not None and await log.find(query.after, reader) is None:
        raise InvalidRequest(
            f"there is no request {query.after[:80]!r} any more: begin without after", param="after"
        )
    shown = [EndedRequest(**_fields(line)) for line in found[: query.limit]]
    last_id = shown[-1].id if shown else None
    return json_response(RequestPage(data=shown, has_more=len(found) > query.limit, last_id=last_id))


@Endpoint("GET", "/v1/requests/{request_id}", reply=EndedRequestDetail)
async def get_request(http: HttpRequest, request_id: str) -> Response:
    """One of these requests; the latest where several had the id."""
    line = await _found(http, request_id)
    body = None if line.body is None else line.body.decode("utf-8", "replace")
    return json_response(EndedRequestDetail(**_fields(line), body=body))


@Endpoint("GET", "/v1/requests/{request_id}/explain", reply=ExplainNode)
async def explain_request(http: HttpRequest, request_id: str) -> Response:
    """Where its time went."""
    line = await _found(http, request_id)
    if line.explain is None:
        raise NotFound(f"the parts of request {request_id[:80]!r} were not kept", code="not_explained")
    return json_response(Raw(line.explain))


async def _found(http: HttpRequest, request_id: str) -> LoggedRequest:
    line = await get_service(http).requests.find(request_id, call_of(http).account)
    if line is None:
        raise NotFound(
            f"there is no request {request_id[:80]!r}: it has not ended, was deleted or never was",
            param="request_id",
            code="request_not_found",
        )
    return line


def _fields(line: LoggedRequest) -> dict[str, Any]:
    return {
        "id": line.id,
        "created": round(line.arrived_s, 3),
        "endpoint": line.path,
        "model": line.model,
        "status": line.outcome,
        "http_status": line.status,
        "error": line.error,
        "input_tokens": line.prompt_tokens,
        "cached_tokens": line.cached_tokens,
        "output_tokens": line.completion_tokens,
        "duration_s": round(line.total_s, 6),
        "ttft_s": None if line.first_token_s is None else round(line.first_token_s, 6),
        "key": line.key_name,
        "trace_id": line.trace_id or None,
    }
