"""Errors of the APIs: all have an object with a message, and mean the same by a status."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

import msgspec

from headrace.providers.failure import AttemptFailed, Failure, Kind

_QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "insufficient_balance", "credit")
_CONTEXT = ("context_length_exceeded", "context_window_exceeded", "exceed_context_size_error")
_CONTENT = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation", "moderation")


def kind_of_status(status: int) -> Kind:
    """What a status means where nothing more is known."""
    known: dict[int, Kind] = {
        401: "auth",
        402: "quota",
        403: "auth",
        404: "missing",
        408: "timeout",
        409: "server",
        413: "context",
        425: "overloaded",
        429: "rate_limit",
        498: "overloaded",
        503: "overloaded",
        504: "timeout",
        508: "missing",
        529: "overloaded",
    }
    if status in known:
        return known[status]
    return "server" if status >= 500 else "invalid" if status >= 400 else "malformed"


def error_fields(body: bytes) -> dict[str, Any]:
    """The error object of a body, wherever it stands: `error`, the body itself, or a list of one; else {}."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    if isinstance(value, list):
        value = cast("list[Any]", value)[0] if value else {}
    if not isinstance(value, dict):
        return {}
    fields = cast("dict[str, Any]", value)
    inner = fields.get("error")
    if isinstance(inner, dict):
        return cast("dict[str, Any]", inner)
    return {"message": inner, **fields} if isinstance(inner, str) else fields


def reply_failure(status: int, body: bytes) -> Failure:
    """What an error reply of status `status` means."""
    fields = error_fields(body)
    kind = kind_of_status(status)
    words = _words(fields)
    message = fields.get("message") or fields.get("detail") or ""
    if not isinstance(message, str):  # FastAPI's lists of what is invalid
        message = json.dumps(message)
    is_unpaid = any(word in words for word in _QUOTA) or "credit balance" in message
    if kind in ("rate_limit", "auth", "invalid") and is_unpaid:
        kind = "quota"
    elif kind == "invalid" and (any(word in words for word in _CONTEXT) or _is_context(message)):
        kind = "context"
    elif kind in ("invalid", "auth") and any(word in words for word in _CONTENT):
        kind = "content"
    param = fields.get("param")
    said = f" (status {status}): {message}" if message else f" with status {status}"
    return Failure(
        phase="headers",
        kind=kind,
        message="replied with an error" + said,
        status=status,
        param=param[:100] if isinstance(param, str) else None,
        billed="maybe" if status in (408, 504) else "no",
    )


def raise_error(error: bytes) -> NoReturn:
    """An error within a stream whose status was 200."""
    fields = error_fields(error)
    code = fields.get("code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    is_status = isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600
    failure = reply_failure(cast("int", code) if is_status else _status_of(fields), error)
    message = fields.get("message")
    said = f": {message}" if isinstance(message, str) and message else ""
    raise AttemptFailed(
        msgspec.structs.replace(
            failure, phase="stream", billed="maybe", message=f"failed in its stream{said}"
        )
    )


def _status_of(fields: dict[str, Any]) -> int:
    words = _words(fields)
    for word, status in (
        ("RESOURCE_EXHAUSTED", 429),
        ("UNAVAILABLE", 503),
        ("too_large", 413),
        ("rate_limit", 429),
        ("overloaded", 529),
        ("invalid", 400),
        ("context_length", 400),
        ("content_filter", 400),
        ("auth", 401),
        ("permission", 403),
        ("not_found", 404),
        ("quota", 402),
        ("timeout", 504),
    ):
        if word in words:
            return status
    return 500


def _words(fields: dict[str, Any]) -> str:
    """What names the kind of an error: `code` and `type`, Google's `status`."""
    return " ".join(str(fields.get(name) or "") for name in ("code", "type", "status"))


def _is_context(message: str) -> bool:
    text = message.lower()
    if "prompt is too long" in text or "input token count" in text:
        return True
    return "context" in text and ("length" in text or "window" in text or "size" in text) and "token" in text
