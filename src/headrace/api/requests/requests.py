"""GET /v1/requests, /v1/requests/{id} and /v1/requests/{id}/explain: requests that run or have ended."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.requests.journaled import CURSOR, JournalList
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.storage.request_log import LogFilter, LoggedRequest
from headrace.telemetry.explain_node import ExplainNode

MAX_PAGE = 1000
RequestStatus = Literal["running", "completed", "failed", "cancelled"]


class ListedRequest(Struct, frozen=True, kw_only=True):
    """A request that runs or has ended. `created` are Unix seconds; null is what is not known or there was
    none of. A stream that failed has the HTTP status with which it began. Of one that runs the HTTP status is
    0 until its reply has begun, and `duration_s` is its time so far."""

    id: str
    created: float
    endpoint: str
    model: str | None
    status: RequestStatus
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


class RequestDetail(ListedRequest, frozen=True, kw_only=True):
    """The same with what the client sent, as text, where the server keeps that (`log_content`)."""

    body: str | None


class RequestPage(Struct, frozen=True, kw_only=True):
    """Requests, newest first. `last_id` is `after` of the next page."""

    data: list[ListedRequest]
    has_more: bool
    last_id: str | None
    object: Literal["list"] = "list"


class RequestsQuery(Query, frozen=True, kw_only=True):
    """Which requests are listed."""

    status: Annotated[
        Literal["any", "running", "completed", "failed", "cancelled"],
        Meta(description="What became of them."),
    ] = "any"
    model: str | None = None
    endpoint: Annotated[str, Meta(description="The path that was asked.")] | None = None
    key: Annotated[str, Meta(description="Name of the key that asked.")] | None = None
    since: Annotated[float, Meta(ge=0, description="Unix seconds: those that came later.")] = 0.0
    after: Annotated[str, Meta(description="`last_id` of the page before.")] | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = 50


@Endpoint("GET", "/v1/requests", reply=RequestPage, query=RequestsQuery)
async def list_requests(http: HttpRequest) -> Response:
    """The requests of the caller's key, or with the scope admin of all keys: those that run, and those that
    have ended, newest first. With a journal those of earlier servers follow: of many that do not match a page
    may have few, or none, and `has_more`."""
    query = read_query(RequestsQuery, http)
    running = [one for one in _running(http) if _matches(one, query)]
    after = query.after
    if after is not None:
        place = next((at for at, one in enumerate(running) if one.id == after), None)
        running = [] if place is None else running[place + 1 :]
        after = after if place is None else None
    found = running[: query.limit + 1]
    last_id = None
    has_more = len(found) > query.limit
    if query.status != "running" and not has_more:
        ended, last_id, has_more = await _ended(http, query, after, query.limit - len(found))
        found += ended
    shown = found[: query.limit]
    if last_id is None and shown:
        last_id = shown[-1].id
    return json_response(RequestPage(data=shown, has_more=has_more, last_id=last_id))


async def _ended(
    http: HttpRequest, query: RequestsQuery, after: str | None, room: int
) -> tuple[list[ListedRequest], str | None, bool]:
    """As many that have ended; the cursor of what follows where that is no id, and whether there is more."""
    service, reader = get_service(http), call_of(http).account
    wanted = LogFilter(
        status=None if query.status in ("any", "running") else query.status,
        model=query.model,
        endpoint=query.endpoint,
        key_name=query.key,
        since_s=query.since,
        after=after,
        limit=room + 1,
    )
    journal, before = _journal_list(http), None
    is_of_journal = journal is not None and after is not None and after.startswith(CURSOR)
    lines = [] if is_of_journal else await service.requests.page(wanted, reader)
    owner = await _sees(http) if journal is not None else None
    if (
        not lines
        and after is not None
        and (is_of_journal or await service.requests.find(after, reader) is None)
    ):
        before = None if journal is None else await journal.place(after, owner)
        if before is None:
            raise InvalidRequest(
                f"there is no request {after[:80]!r} any more: begin without after", param="after"
            )
    found = [ListedRequest(**_fields(line)) for line in lines[:room]]
    if journal is None or len(lines) > room:
        return found, None, len(lines) > room
    page = await journal.page(replace(wanted, owner=owner, limit=room - len(lines)), before)
    found += [ListedRequest(**_fields(line)) for _, line in page.entries]
    return found, page.last or None, page.has_more


@Endpoint("GET", "/v1/requests/{request_id}", reply=RequestDetail)
async def get_request(http: HttpRequest, request_id: str) -> Response:
    """One of these requests; the latest where several had the id. What was sent is shown of those that have
    ended."""
    running = next((one for one in _running(http) if one.id == request_id), None)
    if running is not None:
        return json_response(RequestDetail(**asdict(running), body=None))
    line = await _found(http, request_id)
    body = None if line.body is None else line.body.decode("utf-8", "replace")
    return json_response(RequestDetail(**_fields(line), body=body))


@Endpoint("GET", "/v1/requests/{request_id}/explain", reply=ExplainNode)
async def explain_request(http: HttpRequest, request_id: str) -> Response:
    """Where its time went."""
    line = await _found(http, request_id)
    if line.explain is None:
        raise NotFound(f"the parts of request {request_id[:80]!r} were not kept", code="not_explained")
    return json_response(Raw(line.explain))


def _running(http: HttpRequest) -> list[ListedRequest]:
    """The requests that run and that the caller may see, newest first; also those of an earlier server that
    wait for their turn to go on."""
    reader, now_s, service = call_of(http).account, time.monotonic(), get_service(http)
    calls = {call.nonce: call for call in service.gate.calls if isinstance(call, HttpCall)}
    whole = {nonce for nonce, call in calls.items() if call.status and call.is_whole}
    if service.journal is not None:
        for one in service.journal.running.values():
            calls.setdefault(one.call.nonce, one.call)
            if not one.reply.is_whole:  # it goes on without its client
                whole.discard(one.call.nonce)
    seen = [
        call
        for nonce, call in calls.items()
        if nonce not in whole  # its client has all of the reply
        and (reader.may("admin") or call.account.cache_salt == reader.cache_salt)
    ]
    return [_as_running(call, now_s) for call in sorted(seen, key=lambda one: one.arrival_s, reverse=True)]


def _as_running(call: HttpCall, now_s: float) -> ListedRequest:
    return ListedRequest(
        id=call.request_id,
        created=round(call.arrived_unix_s, 3),
        endpoint=call.path[:1024],
        model=call.model or None,
        status="running",
        http_status=call.status,
        error=None,
        input_tokens=None,
        cached_tokens=None,
        output_tokens=None,
        duration_s=round(now_s - call.arrival_s, 6),
        ttft_s=None if call.first_token_s is None else round(call.first_token_s, 6),
        key=call.account.name or None,
        trace_id=call.recorded_trace or None,
    )


def _matches(one: ListedRequest, query: RequestsQuery) -> bool:
    asked = ((query.model, one.model), (query.endpoint, one.endpoint), (query.key, one.key))
    is_wanted = query.status in ("any", "running") and one.created > query.since
    return is_wanted and all(wanted in (None, has) for wanted, has in asked)


def _journal_list(http: HttpRequest) -> JournalList | None:
    service = get_service(http)
    if service.journal is None:
        return None
    service.journal.journal.flush()  # what has ended a moment ago is there
    return JournalList(service.journal, service.requests)


async def _sees(http: HttpRequest) -> str | None:
    """Whose requests of the journal the caller sees; None: everybody's."""
    account, journal = call_of(http).account, get_service(http).journal
    return None if journal is None or account.may("admin") else await journal.owner(account)


async def _found(http: HttpRequest, request_id: str) -> LoggedRequest:
    service, journal = get_service(http), _journal_list(http)
    line = await service.requests.find(request_id, call_of(http).account)
    if line is None and journal is not None:
        content = service.settings.log_content
        line = await journal.find(request_id, await _sees(http), content=content)
    if line is None:
        raise NotFound(
            f"there is no request {request_id[:80]!r}: it has not ended, was deleted or never was, "
            "or the server was started anew and had no --log-requests",
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
