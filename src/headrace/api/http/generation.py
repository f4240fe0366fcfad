"""From an inference request to a reply, whole or streamed, in the format of any endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.errors import ClientGone, json_response
from headrace.api.http.event_stream import StreamedReply, StreamWriter, wait_for_disconnect
from headrace.api.service import CLIENT_GONE, Service, get_service
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.handler import OpenStream
from headrace.inference.requests import InferenceRequest
from headrace.inference.result import ResultCollector, collect

LOG = logging.getLogger("headrace.api")

T = TypeVar("T")


class WholeFormat(Protocol):
    """How an endpoint writes a reply that is not streamed."""

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> Struct | Raw:
        """The body of the reply."""
        ...


class ReplyFormat(WholeFormat, Protocol):
    """How an endpoint writes a reply, whole or streamed."""

    def stream(self, prepared: Prepared, call: CallContext) -> StreamWriter:
        """The writer of a streamed reply."""
        ...


async def respond(
    http: HttpRequest, request: InferenceRequest, reply: ReplyFormat, *, stream: bool
) -> Response:
    """Run a request and reply; raises what refuses it."""
    if not stream:
        return await respond_whole(http, request, reply)
    call = call_of(http)
    opened = await _opened(http, request, call)
    try:
        return StreamedReply(reply.stream(opened.prepared, call), opened)
    except BaseException:
        await opened.aclose()
        raise


async def _opened(http: HttpRequest, request: InferenceRequest, call: CallContext) -> OpenStream:
    """Start a request, which may wait for a model or a grammar; dropped when its client leaves."""
    opening = _boxed(get_service(http).open(request, call))
    found = await unless_gone(http, opening, drop=lambda one: one[0].aclose())
    if found is None:
        raise ClientGone("the client left before anything was computed")
    return found[0]


async def respond_whole(http: HttpRequest, request: InferenceRequest, reply: WholeFormat) -> Response:
    """Run a request and reply when everything is there; raises what refuses it."""
    call = call_of(http)
    opened = await _opened(http, request, call)
    result = await unless_gone(http, collect(opened))
    if result is None:
        LOG.info("%s: the client left before the reply", request.id)
        return Response(status_code=CLIENT_GONE)
    return json_response(reply.whole(opened.prepared, result, call))


async def answer(
    service: Service, request: InferenceRequest, reply: WholeFormat, call: CallContext
) -> Struct | Raw:
    """Run a request that no client waits for on a connection (a line of a batch), and give the reply."""
    opened = await service.open(request, call)
    return reply.whole(opened.prepared, await collect(opened), call)


async def done(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the client leaves, which raises ClientGone."""
    found = await unless_gone(http, _boxed(work))
    if found is None:
        raise ClientGone("the client left before anything was computed")
    return found[0]


async def _boxed(work: Coroutine[Any, Any, T]) -> tuple[T]:
    return (await work,)


async def unless_gone(
    http: HttpRequest, work: Coroutine[Any, Any, T], *, drop: Callable[[T], Awaitable[None]] | None = None
) -> T | None:
    """What `work` returns or raises; None when the client left first, and then `work` is cancelled.

    Where this is cancelled at the moment in which `work` has returned, `drop` gets what nothing else will.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(http.receive))
    try:
        await asyncio.wait((gone, working), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if drop is not None and working.done() and not working.cancelled() and not working.exception():
            await drop(working.result())
        raise
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
    return working.result() if working.done() and not working.cancelled() else None
