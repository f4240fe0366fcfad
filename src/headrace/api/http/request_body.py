"""The bytes of a request's body, within limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from headrace.api.http.call_context import call_of
from headrace.api.http.errors import BodyTooLarge, BodyTooSlow, ClientGone
from headrace.api.service import get_service

BODY_LIMIT_BYTES = 32 * 2**20
BODY_DEADLINE_S = 60.0


async def read_body(request: HttpRequest) -> bytes:
    """The body, refused above 32 MB or when it takes longer than a minute."""
    limit = BODY_LIMIT_BYTES
    refusal = f"the body is larger than {limit:,} bytes: send less in one request"
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise BodyTooLarge(refusal)
    service, call = get_service(request), call_of(request)
    service.hold_body(call, int(declared))
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise BodyTooLarge(refusal)
                if len(body) > call.body_bytes:
                    service.hold_body(call, len(body) - call.body_bytes)
    except ClientDisconnect:
        raise ClientGone("the client left before its body had arrived") from None
    except TimeoutError:
        raise BodyTooSlow(
            f"the body did not arrive within {BODY_DEADLINE_S:g} s ({len(body):,} bytes came): send it again"
        ) from None
    if service.settings.log_content:
        call.body = bytes(body)
    return bytes(body)
