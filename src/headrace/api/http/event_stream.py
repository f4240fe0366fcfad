"""A streamed reply: encoded parts, a bounded buffer per reader, an end whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.http.call_context import CallContext
from headrace.api.http.disconnect import wait_for_disconnect
from headrace.api.service import ActiveRequest, Service
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

LOG = logging.getLogger("headrace.api")

# Together with the transport's own 64 KiB mark and one slice on its way: at most 256 KiB per reader.
PENDING_LIMIT_BYTES = 128 * 1024
HOLD_BYTES = 64 * 1024
RESUME_BYTES = 16 * 1024
"""With so much waiting no more is computed for a reader, and again when it has come down to that."""
SLICE_BYTES = 64 * 1024
STALL_S = 60.0


class StreamWriter(Protocol):
    """Turns engine events into the bytes of one endpoint's stream."""

    media_type: str

    def events(self, index: int, events: list[EngineEvent]) -> bytes:
        """What is sent for events of the request at `index`; `RequestFailed` is not its business."""
        ...

    def finish(self) -> bytes:
        """What is sent after the last event."""
        ...

    def failure(self, error: HeadraceError) -> bytes:
        """What ends a stream that has failed."""
        ...


class StreamedReply(Response):
    """A streamed reply: make it, `submit`, then return it from the endpoint."""

    _generation: ActiveRequest

    def __init__(self, writer: StreamWriter, opening: bytes = b"") -> None:
        """`opening` is sent before anything has been computed."""
        super().__init__(
            media_type=writer.media_type,
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        del self.headers["content-length"]  # not known yet
        self._writer = writer
        self._pending = bytearray(opening)
        self._wake = asyncio.Event()
        self._complete = False
        self._sending = False
        self._paused = False
        self._cut: Callable[[str], None] = lambda reason: None

    async def submit(
        self, service: Service, model: LoadedModel, requests: Sequence[EngineRequest], call: CallContext
    ) -> None:
        """Hand the requests to the engine; raises its refusal, so that no stream has started then."""
        self._generation = await service.start(model, requests, self._feed, call)
        self._generation.ended.add_done_callback(lambda ended: self._end(ended.result()))

    def _feed(self, index: int, events: list[EngineEvent]) -> None:
        if self._complete:
            return
        if self._sending and len(self._pending) > PENDING_LIMIT_BYTES:
            self._cut(f"{len(self._pending):,} bytes wait for it")
            return
        self._pending += self._writer.events(index, events)
        if self._sending and not self._paused and len(self._pending) > HOLD_BYTES:
            self._paused = True
            self._generation.pause(True)
        if isinstance(events[-1], RequestFailed):
            self._end(events[-1].error)
        self._wake.set()

    def _end(self, error: HeadraceError | None) -> None:
        """Write what closes the stream, once."""
        if self._complete:
            return
        self._complete = True
        self._pending += self._writer.finish() if error is None else self._writer.failure(error)
        self._wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send chunks until the end, the client's leaving, or a stall; then nothing is left running."""
        writer = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        abort: Callable[[], None] = scope.get("extensions", {}).get("headrace.abort", writer.cancel)

        def cut(reason: str) -> None:
            LOG.warning("a reader is too slow (%s): its connection is cut", reason)
            self._generation.cancel()
            abort()

        self._cut = cut
        try:
            await asyncio.wait((writer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._generation.cancel()
            gone.cancel()
            writer.cancel()
        if writer.done() and not writer.cancelled():
            writer.result()

    async def _write(self, send: Send) -> None:
        """Pass pending bytes on; the connection is cut when the reader takes none for STALL_S."""
        call_later = asyncio.get_running_loop().call_later
        stalled = f"nothing was read for {STALL_S:g} s"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        more = True
        while more:
            if not self._pending and not self._complete:
                await self._wake.wait()
            self._wake.clear()
            part = bytes(self._pending[:SLICE_BYTES])
            del self._pending[:SLICE_BYTES]
            more = bool(self._pending) or not self._complete
            self._sending = True
            timer = call_later(STALL_S, self._cut, stalled)  # asyncio.timeout would cost a tenth of it all
            try:
                await send({"type": "http.response.body", "body": part, "more_body": more})
            finally:
                timer.cancel()
            self._sending = False
            if self._paused and len(self._pending) <= RESUME_BYTES:
                self._paused = False
                self._generation.pause(False)
