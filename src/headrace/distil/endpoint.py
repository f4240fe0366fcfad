"""A teacher behind an OpenAI-compatible address: its answers as texts."""

from __future__ import annotations

import json
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.parse import urlsplit

from headrace.distil.samples import Prompt
from headrace.errors import TargetUnreachable, UsageError

MAX_REPLY_BYTES = 4 << 20
TIMEOUT_S, MAX_REPLY_S = 120.0, 600.0
"""Without a byte, and of a whole reply: one that sends a byte now and then must end, too."""
READ_BYTES = 1 << 16
TRIES = 4
MAX_WAIT_S = 20.0
AT_ONCE = 8


class TeacherEndpoint:
    """`address` ends in /v1. Redirects are not followed: the key would go along."""

    def __init__(self, address: str, model: str | None, key: str | None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise UsageError(f"{address[:80]} is no address such as https://host/v1", param="teacher")
        self._address, self._key = address.rstrip("/"), key
        self._opener = urllib.request.build_opener(
            _NoRedirect(), urllib.request.HTTPSHandler(context=ssl.create_default_context())
        )
        self.model = model or self._only_model()

    def answers(self, prompts: Sequence[Prompt], *, max_tokens: int) -> list[str]:
        """At temperature 0. TargetUnreachable where the address does not answer so."""

        def one(prompt: Prompt) -> str:
            body = {
                "model": self.model,
                "messages": list(prompt.messages),
                "max_tokens": max_tokens,
                "temperature": 0,
            }
            return _text_of(self._call("/chat/completions", body), self._address)

        with ThreadPoolExecutor(AT_ONCE, "headrace-teacher") as pool:
            return list(pool.map(one, prompts))

    def _only_model(self) -> str:
        read: Any = self._call("/models", None)
        data = read.get("data")
        listed = cast("list[Any]", data) if isinstance(data, list) else []
        names: list[Any] = [one.get("id") for one in listed if isinstance(one, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if len(names) != 1 or not isinstance(names[0], str):
            raise UsageError(
                f"{self._address} has {len(names)} models: name one with --teacher-model",
                param="teacher_model",
            )
        return names[0]

    def _call(self, path: str, body: object) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        cause = ""
        for attempt in range(TRIES):
            request = urllib.request.Request(f"{self._address}{path}", data, headers)
            try:
                with self._opener.open(request, timeout=TIMEOUT_S) as reply:
                    return _object(_read(reply), self._address)
            except urllib.error.HTTPError as error:
                cause = f"status {error.code}: {_refusal(error)}"
                if error.code not in (408, 409, 429) and error.code < 500:
                    break
                wait = _seconds(error.headers.get("retry-after"))
            except (OSError, ValueError, HTTPException) as error:
                cause, wait = str(error).strip()[:200] or type(error).__name__, None
            if attempt < TRIES - 1:
                time.sleep(min(2.0**attempt * 0.5 if wait is None else wait, MAX_WAIT_S))
        raise TargetUnreachable(f"the teacher at {self._address} gives no answer: {cause}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        return None


def _read(reply: HTTPResponse) -> bytes:
    """No more than is needed to see that it is too long. TimeoutError where it takes too long."""
    found, end_s = bytearray(), time.monotonic() + MAX_REPLY_S
    while len(found) <= MAX_REPLY_BYTES and (part := reply.read1(READ_BYTES)):
        found += part
        if time.monotonic() > end_s:
            raise TimeoutError(f"its reply takes more than {MAX_REPLY_S:.0f} s")
    return bytes(found)


def _refusal(error: urllib.error.HTTPError) -> str:
    """The beginning of its text, as far as that can be read."""
    try:
        return _quoted(error.read1(2000))
    except (OSError, ValueError, HTTPException):
        return "''"


def _object(data: bytes, address: str) -> dict[str, Any]:
    if len(data) > MAX_REPLY_BYTES:
        raise TargetUnreachable(f"the teacher at {address} replies with more than {MAX_REPLY_BYTES:,} bytes")
    try:
        read: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise TargetUnreachable(f"the teacher at {address} replies with no JSON: {_quoted(data)}") from None
    if not isinstance(read, dict):
        raise TargetUnreachable(f"the teacher at {address} replies with no object: {_quoted(data)}")
    return read  # pyright: ignore[reportUnknownVariableType]


def _text_of(reply: dict[str, Any], address: str) -> str:
    try:
        text = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise TargetUnreachable(f"the teacher at {address} replies without an answer's text")
    return text


def _quoted(data: bytes) -> str:
    return repr(data[:120].decode("utf-8", "replace"))


def _seconds(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return max(found, 0.0) if math.isfinite(found) else None
