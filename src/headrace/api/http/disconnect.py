"""Waiting for an answer while the client may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.types import Receive

T = TypeVar("T")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns or raises; None when the client left first, and then `work` is cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(http.receive))
    try:
        await asyncio.wait((gone, working), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
    return working.result() if working.done() and not working.cancelled() else None
