"""/v1/batches: requests from a file, computed while there is nothing better to do; every key sees its own."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.batch_operations import runner_of
from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.openai.batch_schema import BatchList, BatchObject, RequestCounts
from headrace.api.openai.files import EXPIRES_AFTER_S, file_not_found
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.inference.batches.batch_files import BatchUsage
from headrace.inference.batches.batch_lines import read_lines
from headrace.storage.batches import Batches, StoredBatch
from headrace.storage.files import Files
from headrace.struct_types import thread_safe

MAX_PAGE = 100
MAX_METADATA = 16
_WINDOW = re.compile(r"([1-9][0-9]{0,3})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_S = 30 * 86_400
WINDOW = {
    "pattern": "^([1-9][0-9]{0,3}[sm]|([1-9][0-9]?|[1-6][0-9]{2}|7[01][0-9]|720)h|([1-9]|[12][0-9]|30)d)$"
}

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=MAX_METADATA),
]


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    """How long the files of a batch are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=EXPIRES_AFTER_S[0], le=EXPIRES_AFTER_S[1])]


class BatchBody(RequestBody, kw_only=True):
    """The body of a new batch."""

    input_file_id: Annotated[str, Meta(max_length=200)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Annotated[
        str, Meta(description="24h, or another time such as 30m or 7d", extra_json_schema=WINDOW)
    ]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def window_s(self) -> int:
        """The completion window in seconds; raises InvalidRequest."""
        found = _WINDOW.fullmatch(self.completion_window)
        window_s = int(found[1]) * _UNIT_S[found[2]] if found else 0
        if not 1 <= window_s <= MAX_WINDOW_S:
            raise InvalidRequest(
                f"completion_window is {self.completion_window[:40]!r}, it must be a time such as 24h, "
                "at most 30d",
                param="completion_window",
            )
        return window_s


class BatchesQuery(Query, frozen=True):
    """The query of a list of batches."""

    after: str | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = 20


def batch_object(batch: StoredBatch) -> BatchObject:
    """A batch as the API shows it."""
    ended = {batch.status: batch.ended_s}
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.status,
        created_at=batch.created_s,
        in_progress_at=batch.created_s,
        expires_at=batch.expires_s,
        cancelling_at=batch.cancelling_s,
        finalizing_at=batch.finalizing_s,
        completed_at=ended.get("completed"),
        expired_at=ended.get("expired"),
        cancelled_at=ended.get("cancelled"),
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        request_counts=RequestCounts(batch.total, batch.completed, batch.failed),
        usage=None if batch.usage is None else msgspec.json.decode(batch.usage, type=thread_safe(BatchUsage)),
        metadata=None if batch.metadata is None else json.loads(batch.metadata),
    )


def _no_such_batch(batch_id: str) -> NotFound:
    return NotFound(f"there is no batch {batch_id[:80]!r}")


@Endpoint("POST", "/v1/batches", body=BatchBody, reply=BatchObject)
async def create_batch(http: HttpRequest) -> Response:
    """Begin a batch with the lines of a file. It runs while there is room; a wrong line fails alone."""
    service, owner = get_service(http), call_of(http).account.owner
    body = await read_checked(BatchBody, http)
    window_s = body.window_s

    def begin() -> StoredBatch:
        files = Files(service.shared)
        file = files.get(owner(), body.input_file_id) if service.shared.exists else None
        if file is None:
            raise file_not_found(body.input_file_id, "input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest(
                f"the file's purpose is {file.purpose!r}: upload it with the purpose 'batch'",
                param="input_file_id",
            )
        expires_after = body.output_expires_after
        return Batches(service.shared).add(
            owner(),
            read_lines(files.parts(file.id), body.endpoint),
            endpoint=body.endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            window_s=window_s,
            metadata=None if body.metadata is None else json.dumps(body.metadata),
            files_expire_after_s=None if expires_after is None else expires_after.seconds,
            hops=",".join(call_of(http).hops),
        )

    batch = await service.run_in_thread(begin)
    runner_of(http).look()
    return json_response(batch_object(batch))


@Endpoint(
    "GET",
    "/v1/batches",
    reply=BatchList,
    query=BatchesQuery,
)
async def list_batches(http: HttpRequest) -> Response:
    """The caller's batches, newest first."""
    service, owner = get_service(http), call_of(http).account.owner
    query = read_query(BatchesQuery, http)

    def read() -> list[StoredBatch]:
        if not service.shared.exists:
            return []
        return Batches(service.shared).page(owner(), after=query.after, limit=query.limit + 1)

    found = [batch_object(batch) for batch in await service.run_in_thread(read)]
    page = found[: query.limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(BatchList(page, len(found) > query.limit, first, last))


@Endpoint("GET", "/v1/batches/{batch_id}", reply=BatchObject)
async def get_batch(http: HttpRequest, batch_id: str) -> Response:
    """One of the caller's batches, with how far it is."""
    service, owner = get_service(http), call_of(http).account.owner

    def read() -> StoredBatch | None:
        return Batches(service.shared).get(owner(), batch_id) if service.shared.exists else None

    batch = await service.run_in_thread(read)
    if batch is None:
        raise _no_such_batch(batch_id)
    return json_response(batch_object(batch))


@Endpoint("POST", "/v1/batches/{batch_id}/cancel", reply=BatchObject)
async def cancel_batch(http: HttpRequest, batch_id: str) -> Response:
    """End one of the caller's batches; what has run stays in its files."""
    service, owner = get_service(http), call_of(http).account.owner

    def cancel() -> StoredBatch | None:
        return Batches(service.shared).cancel(owner(), batch_id) if service.shared.exists else None

    batch = await service.run_in_thread(cancel)
    if batch is None:
        raise _no_such_batch(batch_id)
    if batch.ended_s is not None and batch.status != "cancelled":
        raise InvalidRequest(
            f"the batch has ended ({batch.status}): there is nothing to cancel", param="batch_id"
        )
    runner_of(http).look()
    return json_response(batch_object(batch))
