"""The stream of a response in the background: it can be read from any event on, left, and read again."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.http.event_stream import MEDIA_TYPE, SLICE_BYTES, wait_for_disconnect
from headrace.inference.response_store import InProgressResponse


class ReplayStream(Response):
    """The events from the number `first` on, as they come. A client that leaves stops nothing."""

    def __init__(self, making: InProgressResponse[Any], first: int) -> None:
        super().__init__(
            media_type=MEDIA_TYPE, headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]  # not known yet
        self._making = making
        self._next = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the last one, or until the reader has left."""
        writer = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((writer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            writer.cancel()
        if writer.done() and not writer.cancelled():
            writer.result()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        more = True
        while more:
            wake = self._making.more
            part = self._part()
            more = not self._making.ended or self._next < len(self._making.events)
            if part or not more:
                await send({"type": "http.response.body", "body": part, "more_body": more})
            elif more:
                await wake.wait()

    def _part(self) -> bytes:
        """The next events, of about SLICE_BYTES."""
        part = bytearray()
        for event in self._making.events[self._next :]:
            part += event
            self._next += 1
            if len(part) >= SLICE_BYTES:
                break
        return bytes(part)
