"""The lines of a batch: requests as they come in a file, and what is written for each in the end."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from headrace.errors import InvalidRequest
from headrace.storage.batches import Line, LineState

MAX_LINES = 50_000
MAX_CUSTOM_ID = 512
WITHOUT_SENSE = ("stream", "background", "priority")  # nobody reads along, and batches come last


class LineError(msgspec.Struct, frozen=True):
    """Why a line has no response."""

    code: str
    message: str


class LineResponse(msgspec.Struct, frozen=True):
    """What an endpoint answered; `body` is its JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineReply(msgspec.Struct, frozen=True):
    """A line of an output or error file."""

    id: str
    custom_id: str | None
    response: LineResponse | None
    error: LineError | None


UNFINISHED = {
    "expired": LineError("batch_expired", "the batch's time was over before this line ran"),
    "cancelled": LineError("batch_cancelled", "the batch was cancelled before this line had run"),
}


def reply_line(
    custom_id: str | None, response: LineResponse | None = None, error: LineError | None = None
) -> bytes:
    """A line as it is written."""
    return msgspec.json.encode(LineReply(f"batch_req_{uuid.uuid4().hex}", custom_id, response, error)) + b"\n"


def unfinished_line(line: Line, outcome: str) -> bytes:
    """What is written for a line that was given up."""
    return reply_line(line.custom_id, error=UNFINISHED[outcome])


def text_lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file that comes in parts, without their ends; the last may lack its own."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    yield rest


def read_lines(parts: Iterable[bytes], endpoint: str) -> list[Line]:
    """The lines of a file; one that is wrong is there with its error, and the others run.

    Raises InvalidRequest where there is none at all, or there are too many. Blank lines are none.
    """
    found: list[Line] = []
    seen: set[str] = set()
    for place, text in enumerate(text_lines(parts), 1):
        if not text.strip():
            continue
        if len(found) == MAX_LINES:
            raise InvalidRequest(
                f"the file has more than {MAX_LINES:,} lines: make several batches of it",
                param="input_file_id",
            )
        found.append(_line(place, text, endpoint, seen))
    if not found:
        raise InvalidRequest("the file has no lines: put a request on each", param="input_file_id")
    return found


@dataclass(frozen=True, slots=True)
class _Wrong(Exception):
    code: str
    message: str
    custom_id: str | None = None


def _line(place: int, text: bytes, endpoint: str, seen: set[str]) -> Line:
    try:
        custom_id, body = _request(text, endpoint, seen)
    except _Wrong as wrong:
        error = LineError(wrong.code, f"line {place}: {wrong.message}")
        return Line(place, wrong.custom_id, None, LineState.FAILED, reply_line(wrong.custom_id, error=error))
    return Line(place, custom_id, body)


def _request(text: bytes, endpoint: str, seen: set[str]) -> tuple[str, bytes]:
    """The custom_id and the body of a line; what is wrong with it is raised."""
    try:
        line = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Wrong("invalid_json_line", f"it is not JSON: {error}") from None
    members = cast("dict[str, Any]", line if isinstance(line, dict) else {})
    custom_id = members.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        raise _Wrong("invalid_custom_id", f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters")
    if custom_id in seen:
        raise _Wrong("duplicate_custom_id", "an earlier line has this custom_id", custom_id)
    seen.add(custom_id)
    if members.get("method") != "POST":
        raise _Wrong("invalid_method", f"method is {_shown(members, 'method')}, it must be POST", custom_id)
    if members.get("url") != endpoint:
        raise _Wrong(
            "invalid_url", f"url is {_shown(members, 'url')}, this batch is for {endpoint!r}", custom_id
        )
    body = members.get("body")
    if not isinstance(body, dict):
        raise _Wrong("invalid_request", "body is missing or no object", custom_id)
    for name, value in cast("dict[str, Any]", body).items():
        if name in WITHOUT_SENSE and value:
            raise _Wrong("invalid_request", f"{name} makes no sense in a batch: leave it out", custom_id)
    unknown = sorted(set(members) - {"custom_id", "method", "url", "body"})
    if unknown:
        raise _Wrong("invalid_request", f"unknown member {unknown[0][:80]!r}", custom_id)
    return custom_id, msgspec.json.encode(body)


def _shown(members: dict[str, Any], name: str) -> str:
    return json.dumps(members.get(name), ensure_ascii=False)[:80]
