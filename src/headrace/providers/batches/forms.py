"""The two forms of providers' batches: files of lines (OpenAI), and lists of messages (Anthropic)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from headrace.providers.batches.api import BatchApi, BatchLine, BatchState, LineResult
from headrace.providers.batches.caller import MAX_RESULT_BYTES, BatchCaller, checked_id, failed
from headrace.providers.dialect import Dialect
from headrace.providers.table import BatchForm
from headrace.providers.upstream import Upstream
from headrace.struct_types import thread_safe

T = TypeVar("T", bound=Struct)

CLOCK_SKEW_S = 300
PAGE, MAX_PAGES = 100, 20
"""How many batches a list has, and how many lists are read for one that may have been begun."""


def batch_api_of(
    form: BatchForm,
    upstream: Upstream,
    dialect: Dialect,
    headers: Callable[[Sequence[str]], dict[str, str]],
    key: Callable[[], str | None],
) -> BatchApi:
    """The batches of a provider in one of the forms."""
    caller = BatchCaller(upstream, dialect, headers, key)
    return AnthropicBatches(caller) if form == "anthropic" else OpenAIBatches(caller)


class _Response(Struct):
    status_code: int = 0
    body: Raw = Raw(b"{}")


class _OpenAILine(Struct):
    custom_id: str = ""
    response: _Response | None = None


class OpenAIBatches:
    """See `BatchApi`: a file of lines, then a batch over it, then a file of results and one of errors."""

    def __init__(self, caller: BatchCaller) -> None:
        self._caller = caller

    async def upload(self, name: str, path: str, lines: Sequence[BatchLine]) -> str:
        """See `BatchApi.upload`."""
        head = b'","method":"POST","url":"' + f"/v1{path}".encode() + b'","body":'
        text = b"".join(
            b'{"custom_id":"' + one.custom_id.encode() + head + one.body + b"}\n" for one in lines
        )
        kind, body = _multipart(name, text)
        return checked_id((await self._caller.read("/files", body, content_type=kind)).get("id"))

    async def create(
        self, name: str, path: str, upload_id: str, lines: Sequence[BatchLine], hops: Sequence[str]
    ) -> str:
        """See `BatchApi.create`."""
        body = {
            "input_file_id": upload_id,
            "endpoint": f"/v1{path}",
            "completion_window": "24h",
            "metadata": {"headrace_job": name},
        }
        found = await self._caller.read(
            "/batches", json.dumps(body).encode(), hops=hops, more={"idempotency-key": name}
        )
        return checked_id(found.get("id"))

    async def find(self, upload_id: str, count: int, since_s: int, known: set[str]) -> str | None:
        """See `BatchApi.find`."""
        async for one in _listed(self._caller, "/batches", "after"):
            if one.get("input_file_id") == upload_id:
                return checked_id(one.get("id"))
        return None

    async def state(self, batch_id: str) -> BatchState:
        """See `BatchApi.state`."""
        found = await self._caller.read(f"/batches/{batch_id}")
        status = str(found.get("status"))
        if status not in ("completed", "failed", "expired", "cancelled"):
            return BatchState(is_ended=False)
        ids = [found.get("output_file_id"), found.get("error_file_id")]
        error = self._caller.shown(json.dumps(found.get("errors"))) if status == "failed" else ""
        return BatchState(is_ended=True, results=tuple(checked_id(one) for one in ids if one), error=error)

    async def results(self, state: BatchState) -> AsyncGenerator[list[LineResult]]:
        """See `BatchApi.results`."""
        for file_id in state.results:
            reply = await self._caller.reply(f"/files/{file_id}/content")
            async for lines in reply.lines(MAX_RESULT_BYTES):
                yield [_openai_result(line) for line in lines]

    async def cancel(self, batch_id: str) -> None:
        """See `BatchApi.cancel`."""
        await self._caller.read(f"/batches/{batch_id}/cancel", b"{}")


async def _listed(caller: BatchCaller, path: str, after: str) -> AsyncGenerator[dict[str, Any]]:
    """The batches of a provider, at most PAGE * MAX_PAGES. `after` is the parameter that
    asks for what follows one."""
    query = f"{path}?limit={PAGE}"
    for _ in range(MAX_PAGES):
        reply = await caller.read(query)
        found: Any = reply.get("data")
        page = cast("list[Any]", found if isinstance(found, list) else [])
        for one in page:
            if isinstance(one, dict):
                yield cast("dict[str, Any]", one)
        last: Any = page[-1] if page else None
        if reply.get("has_more") is not True or not isinstance(last, dict):
            return
        query = f"{path}?limit={PAGE}&{after}={checked_id(cast('dict[str, Any]', last).get('id'))}"


def _openai_result(line: bytes) -> LineResult:
    found = _decoded(line, _OpenAILine)
    reply = found.response
    if reply is None or not 100 <= reply.status_code < 600:
        return LineResult(found.custom_id, 0)
    return LineResult(found.custom_id, reply.status_code, bytes(reply.body))


def _multipart(name: str, text: bytes) -> tuple[str, bytes]:
    """The content type and body that upload a file with the purpose "batch"."""
    mark = f"headrace-{name}"
    part = f'--{mark}\r\ncontent-disposition: form-data; name="'
    body = b"".join((
        f'{part}purpose"\r\n\r\nbatch\r\n{part}file"; filename="{name}.jsonl"\r\n'.encode(),
        b"content-type: application/jsonl\r\n\r\n",
        text,
        f"\r\n--{mark}--\r\n".encode(),
    ))  # fmt: skip
    return f"multipart/form-data; boundary={mark}", body


class _AnthropicError(Struct, frozen=True):
    type: str = ""


class _AnthropicFailure(Struct):
    error: _AnthropicError = _AnthropicError()


class _AnthropicResult(Struct, frozen=True):
    type: str = ""
    message: Raw = Raw(b"{}")
    error: Raw = Raw(b"{}")


class _AnthropicLine(Struct):
    custom_id: str = ""
    result: _AnthropicResult = _AnthropicResult()


_STATUS: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class AnthropicBatches:
    """See `BatchApi`: the messages are the body of the batch, the results come from a path of their own."""

    def __init__(self, caller: BatchCaller) -> None:
        self._caller = caller

    async def upload(self, name: str, path: str, lines: Sequence[BatchLine]) -> str:
        """See `BatchApi.upload`."""
        return ""

    async def create(
        self, name: str, path: str, upload_id: str, lines: Sequence[BatchLine], hops: Sequence[str]
    ) -> str:
        """See `BatchApi.create`."""
        parts = [
            b'{"custom_id":"' + one.custom_id.encode() + b'","params":' + one.body + b"}" for one in lines
        ]
        body = b'{"requests":[' + b",".join(parts) + b"]}"
        found = await self._caller.read(f"{path}/batches", body, hops=hops, more={"idempotency-key": name})
        return checked_id(found.get("id"))

    async def find(self, upload_id: str, count: int, since_s: int, known: set[str]) -> str | None:
        """See `BatchApi.find`. Nothing in a batch says which lines it has before it has ended."""
        async for one in _listed(self._caller, "/messages/batches", "after_id"):
            counts: Any = one.get("request_counts")
            counts = cast("dict[str, Any]", counts if isinstance(counts, dict) else {})
            total = sum(value for value in counts.values() if isinstance(value, int))
            is_new = _unix_s(one.get("created_at")) >= since_s - CLOCK_SKEW_S
            if total == count and is_new and one.get("id") not in known:
                return checked_id(one.get("id"))
        return None

    async def state(self, batch_id: str) -> BatchState:
        """See `BatchApi.state`."""
        found = await self._caller.read(f"/messages/batches/{batch_id}")
        return BatchState(is_ended=found.get("processing_status") == "ended", results=(batch_id,))

    async def results(self, state: BatchState) -> AsyncGenerator[list[LineResult]]:
        """See `BatchApi.results`."""
        for batch_id in state.results:
            reply = await self._caller.reply(f"/messages/batches/{batch_id}/results")
            async for lines in reply.lines(MAX_RESULT_BYTES):
                yield [_anthropic_result(line) for line in lines]

    async def cancel(self, batch_id: str) -> None:
        """See `BatchApi.cancel`."""
        await self._caller.read(f"/messages/batches/{batch_id}/cancel", b"{}")


def _anthropic_result(line: bytes) -> LineResult:
    found = _decoded(line, _AnthropicLine)
    match found.result.type:
        case "succeeded":
            return LineResult(found.custom_id, 200, bytes(found.result.message))
        case "errored":
            error = bytes(found.result.error)
            kind = _decoded(error, _AnthropicFailure).error.type
            return LineResult(found.custom_id, _STATUS.get(kind, 500), error)
        case _:  # canceled, expired
            return LineResult(found.custom_id, 0)


def _decoded(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=thread_safe(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise failed("sent a line of results that cannot be read") from None


def _unix_s(text: object) -> float:
    try:
        return datetime.fromisoformat(re.sub("Z$", "+00:00", str(text))).timestamp()
    except ValueError:
        return 0.0
