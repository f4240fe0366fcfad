"""/v1/messages/batches: many messages that are computed at the lowest priority."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headrace.api.anthropic.body import Strict
from headrace.api.anthropic.schema import (
    BatchCanceled,
    BatchErrored,
    BatchExpired,
    BatchResult,
    BatchSucceeded,
    MessageBatch,
    MessageBatchList,
    MessageCounts,
)
from headrace.api.batch_operations import runner_of
from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.inference.batches.batch_lines import MAX_LINES, UNFINISHED, WITHOUT_SENSE, LineReply, text_lines
from headrace.storage.batches import Batches, Line, StoredBatch
from headrace.storage.files import Files
from headrace.struct_types import thread_safe

PATH = "/v1/messages/batches"
WINDOW_S = 86_400
RESULTS_KEPT_S = 29 * 86_400
MAX_PAGE = 1000
JSON_LINES = "application/x-jsonl"
RESULTS = {"type": "string", "description": "A line of JSON for each message, in no certain order"}

_CODES = {
    error.code: kind() for error, kind in zip(UNFINISHED.values(), (BatchExpired, BatchCanceled), strict=True)
}


class BatchedMessage(Strict, kw_only=True):
    """One message of a batch; `params` is the body of /v1/messages, checked when it runs."""

    custom_id: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(RequestBody, kw_only=True):
    """The body of a new batch."""

    requests: Annotated[list[BatchedMessage], Meta(min_length=1, max_length=MAX_LINES)]

    def lines(self) -> list[Line]:
        """A line for each message; raises InvalidRequest for equal ids and for streamed messages."""
        seen: set[str] = set()
        for request in self.requests:
            if request.custom_id in seen:
                raise InvalidRequest(
                    f"two requests have the custom_id {request.custom_id!r}", param="requests"
                )
            seen.add(request.custom_id)
            for name in WITHOUT_SENSE:
                if request.params.get(name):
                    raise InvalidRequest(
                        f"{request.custom_id}: {name} makes no sense in a batch: leave it out",
                        param="requests",
                    )
        return [
            Line(place, request.custom_id, msgspec.json.encode(request.params))
            for place, request in enumerate(self.requests, 1)
        ]


class MessageBatchesQuery(Query, frozen=True):
    """The query of a list of batches."""

    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = 20


def _batches(service: Service) -> Batches:
    return Batches(service.shared, "msgbatch")


def _time(seconds: int | None) -> str | None:
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    )


def _shown(service: Service, batch: StoredBatch, base_url: str) -> MessageBatch:
    """A batch as the API shows it. Reads the store: what was given up is counted in its file."""
    counts = MessageCounts(processing=batch.total)
    if batch.ended_s is not None:
        kinds = [type(one.result) for one in _results(service, batch.error_file_id)]
        counts = MessageCounts(
            succeeded=batch.completed,
            errored=batch.failed - kinds.count(BatchCanceled) - kinds.count(BatchExpired),
            canceled=kinds.count(BatchCanceled),
            expired=kinds.count(BatchExpired),
        )
    cancelling = "canceling" if batch.cancelling_s is not None else "in_progress"
    return MessageBatch(
        id=batch.id,
        processing_status=cancelling if batch.ended_s is None else "ended",
        request_counts=counts,
        created_at=_time(batch.created_s) or "",
        expires_at=_time(batch.expires_s) or "",
        cancel_initiated_at=_time(batch.cancelling_s),
        ended_at=_time(batch.ended_s),
        results_url=None if batch.ended_s is None else f"{base_url}{PATH[1:]}/{batch.id}/results",
    )


def _results(service: Service, file_id: str | None) -> Iterator[BatchResult]:
    """The results in one of the files that a batch has written."""
    for line in text_lines(Files(service.shared).parts(file_id)) if file_id is not None else ():
        if line:
            yield _result(msgspec.json.decode(line, type=thread_safe(LineReply)))


def _result(reply: LineReply) -> BatchResult:
    custom_id, response = reply.custom_id or "", reply.response
    if response is None:
        assert reply.error is not None
        return BatchResult(custom_id, _CODES[reply.error.code])
    kind = BatchSucceeded if response.status_code == 200 else BatchErrored
    return BatchResult(custom_id, kind(response.body))


async def _find(http: HttpRequest, batch_id: str) -> StoredBatch:
    service, owner = get_service(http), call_of(http).account.owner

    def read() -> StoredBatch | None:
        return _batches(service).get(owner(), batch_id) if service.shared.exists else None

    batch = await service.run_in_thread(read)
    if batch is None:
        raise NotFound(f"there is no batch {batch_id[:80]!r}")
    return batch


async def _reply(http: HttpRequest, batch: StoredBatch) -> Response:
    service, base_url = get_service(http), str(http.base_url)
    return json_response(await service.run_in_thread(lambda: _shown(service, batch, base_url)))


@Endpoint("POST", PATH, body=MessageBatchBody, reply=MessageBatch)
async def create_message_batch(http: HttpRequest) -> Response:
    """Begin a batch of messages. It runs while the server has capacity; a wrong message fails alone."""
    service, owner = get_service(http), call_of(http).account.owner
    body = await read_checked(MessageBatchBody, http)

    def begin() -> StoredBatch:
        return _batches(service).add(
            owner(),
            body.lines(),
            endpoint="/v1/messages",
            input_file_id="",
            completion_window="24h",
            window_s=WINDOW_S,
            metadata=None,
            files_expire_after_s=RESULTS_KEPT_S,
            hops=",".join(call_of(http).hops),
        )

    batch = await service.run_in_thread(begin)
    runner_of(http).look()
    return await _reply(http, batch)


@Endpoint(
    "GET",
    PATH,
    reply=MessageBatchList,
    query=MessageBatchesQuery,
)
async def list_message_batches(http: HttpRequest) -> Response:
    """The caller's batches of messages, newest first."""
    service, owner, base_url = get_service(http), call_of(http).account.owner, str(http.base_url)
    query = read_query(MessageBatchesQuery, http)
    after, before, limit = query.after_id, query.before_id, query.limit

    def read() -> list[MessageBatch]:
        if not service.shared.exists:
            return []
        found = _batches(service).page(owner(), after=after, before=before, limit=limit + 1)
        return [_shown(service, batch, base_url) for batch in found]

    found = await service.run_in_thread(read)
    page = found[:limit] if before is None else found[-limit:]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(MessageBatchList(page, first, last, len(found) > limit))


@Endpoint("GET", PATH + "/{batch_id}", reply=MessageBatch)
async def get_message_batch(http: HttpRequest, batch_id: str) -> Response:
    """One of the caller's batches of messages, with its progress."""
    return await _reply(http, await _find(http, batch_id))


class DeletedMessageBatch(msgspec.Struct, frozen=True):
    """What was deleted."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


@Endpoint("DELETE", PATH + "/{batch_id}", reply=DeletedMessageBatch)
async def delete_message_batch(http: HttpRequest, batch_id: str) -> Response:
    """Delete one of the caller's batches of messages that has ended."""
    service, owner = get_service(http), call_of(http).account.owner
    if (await _find(http, batch_id)).ended_s is None:
        raise InvalidRequest("the batch has not ended: cancel it first", param="batch_id")
    await service.run_in_thread(lambda: _batches(service).delete(owner(), batch_id))
    return json_response(DeletedMessageBatch(batch_id))


@Endpoint("POST", PATH + "/{batch_id}/cancel", reply=MessageBatch)
async def cancel_message_batch(http: HttpRequest, batch_id: str) -> Response:
    """End one of the caller's batches of messages; what has run stays in its results."""
    service, owner = get_service(http), call_of(http).account.owner
    if (await _find(http, batch_id)).ended_s is not None:
        raise InvalidRequest("the batch has ended: there is nothing to cancel", param="batch_id")
    await service.run_in_thread(lambda: _batches(service).cancel(owner(), batch_id))
    runner_of(http).look()
    return await _reply(http, await _find(http, batch_id))


@Endpoint("GET", PATH + "/{batch_id}/results", content=(Content(JSON_LINES, RESULTS),))
async def get_message_batch_results(http: HttpRequest, batch_id: str) -> Response:
    """The result of each message of a batch that has ended."""
    service, batch = get_service(http), await _find(http, batch_id)
    if batch.ended_s is None:
        raise NotFound("the batch has not ended: its results come then")
    return StreamingResponse(_lines(service, batch), media_type=JSON_LINES)


async def _lines(service: Service, batch: StoredBatch) -> AsyncGenerator[bytes]:
    for file_id in (batch.output_file_id, batch.error_file_id):
        results = _results(service, file_id)
        while result := await service.run_in_thread(lambda results=results: next(results, None)):
            yield msgspec.json.encode(result) + b"\n"
