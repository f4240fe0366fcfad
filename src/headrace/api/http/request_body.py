"""The bytes of a request's body, within limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from headrace.api.http import body_memory
from headrace.api.http.call_context import call_of
from headrace.api.http.errors import BodyTooLarge, BodyTooSlow, ClientGone, UnsupportedEncoding
from headrace.api.service import get_service

BODY_LIMIT_BYTES = 32 * 2**20
BODY_DEADLINE_S = 60.0
PATIENCE_S = 5.0  # in which PATIENCE_BYTES, or the body's end, must arrive
PATIENCE_BYTES = 5 * 1024


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
                if len(body) > body_memory.SMALL_BYTES:
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
        call.keeps_content = True
        call.body = bytes(body)
    return bytes(body)
