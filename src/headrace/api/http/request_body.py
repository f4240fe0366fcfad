"""The bytes of a request's body, within limits of size and time; of JSON, each key once."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from headrace.api.http.call_context import call_of
from headrace.api.http.errors import BodyTooLarge, BodyTooSlow, ClientGone, UnsupportedEncoding
from headrace.api.service import get_service
from headrace.errors import InvalidRequest

BODY_LIMIT_BYTES = 32 * 2**20
BODY_DEADLINE_S = 60.0
PATIENCE_S = 5.0  # in which PATIENCE_BYTES, or the body's end, must arrive
PATIENCE_BYTES = 5 * 1024
NAMED_BYTES = 2**20
"""In larger bodies the key is not looked for: that would hold the interpreter lock for a second."""

_ESCAPED_COLON = re.compile(rb"(?<!\\)(?:\\\\)*+\\u003[aA]")


async def read_body(request: HttpRequest) -> bytes:
    """The body, refused above 32 MB, slower than 1 KB/s or a minute, or compressed."""
    limit = BODY_LIMIT_BYTES
    refusal = f"the body is larger than {limit:,} bytes: send less in one request"
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise UnsupportedEncoding(f"the body is {coding[:40]!r}: send it without Content-Encoding")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise BodyTooLarge(refusal)
    service, call = get_service(request), call_of(request)
    body, enough = bytearray(), PATIENCE_BYTES
    clock = asyncio.get_running_loop().time
    end_s = clock() + BODY_DEADLINE_S
    try:
        async with asyncio.timeout(min(PATIENCE_S, BODY_DEADLINE_S)) as patience:
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise BodyTooLarge(refusal)
                service.bodies.hold(call, len(body))
                if len(body) >= enough:
                    enough = len(body) + PATIENCE_BYTES
                    patience.reschedule(min(clock() + PATIENCE_S, end_s))
    except ClientDisconnect:
        raise ClientGone("the client left before its body had arrived") from None
    except TimeoutError:
        raise BodyTooSlow(
            f"the body came too slowly: {len(body):,} bytes are here, {PATIENCE_BYTES:,} must come in each "
            f"{PATIENCE_S:g} s and all within {BODY_DEADLINE_S:g} s: send it again without breaks"
        ) from None
    if service.settings.log_content:
        call.body = bytes(body)
    return bytes(body)


def refuse_duplicate_keys(body: bytes) -> None:
    """InvalidRequest where an object in `body` has a key twice, with its name. What is no JSON passes.

    msgspec keeps one of two equal keys and says nothing, so what it reads is written again and colons are
    counted. Texts have as many of them as before, and every key has one beside it. Where a key was dropped
    there are fewer.
    """
    try:
        kept = msgspec.json.encode(msgspec.json.decode(body)).count(b":")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return  # the reader of the body says what is wrong
    colons = body.count(b":")
    if b"\\u003" in body:
        colons += sum(1 for _ in _ESCAPED_COLON.finditer(body))
    if colons != kept:
        key = _duplicate(body) if len(body) <= NAMED_BYTES else ""
        raise InvalidRequest(
            f"the body has {f'the key {key!r}' if key else 'a key'} twice in one object: send it once",
            param=key or None,
            code="duplicate_key",
        )


def _duplicate(body: bytes) -> str:
    """The first key that is there twice, shortened."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=look)
    return found[0][:80] if found else ""
