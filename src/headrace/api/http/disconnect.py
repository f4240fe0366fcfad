"""Waiting for what a client or an engine does: the client leaves, a reply is whole."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from headrace.api.service import ActiveRequest


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_for_end(request: HttpRequest, generation: ActiveRequest) -> bool:
    """Wait for all events of a reply that is not streamed; False when the client left first.

    Raises the error that ended the generation. Whatever ends the wait, nothing is left running.
    """
    gone = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((gone, generation.ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        generation.cancel()
    if not generation.ended.done():
        return False
    error = generation.ended.result()
    if error is not None:
        raise error
    return True
