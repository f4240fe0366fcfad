"""A streamed reply: events are written as they come, and the stream ends whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.http.endpoint import Content
from headrace.errors import HeadraceError
from headrace.inference.events import InferenceEvent
from headrace.inference.handler import OpenStream

LOG = logging.getLogger("headrace.api")

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()
_PLACE = b"\0"  # which JSON never has

# Events that wait for a reader are bounded by inference/engine_run.py. Together with the transport's own
# 64 KiB mark and one slice being sent: at most 256 KiB per reader.
SLICE_BYTES = 64 * 1024


class StreamWriter(Protocol):
    """Turns the events of one request into the bytes of one endpoint's stream. Where it has a method `close`,
    that is called when its stream is over, also when the client left."""

    media_type: str

    def opening(self) -> bytes:
        """What is sent before anything has been computed."""
        ...

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """What is sent for a batch of events."""
        ...

    def finish(self) -> bytes:
        """What is sent after the last event."""
        ...

    def failure(self, error: HeadraceError) -> bytes:
        """What ends a stream that has failed."""
        ...


class StreamedReply(Response):
    """The reply to an accepted request: return it from the endpoint."""

    def __init__(self, writer: StreamWriter, stream: OpenStream) -> None:
        super().__init__(
            media_type=writer.media_type,
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        del self.headers["content-length"]  # not known yet
        self._writer = writer
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, the client's leaving, or a stall; then nothing is left running."""
        writing = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            writing.cancel()
            await asyncio.wait((writing,))  # it closes the stream
        if not writing.cancelled():
            writing.result()

    async def _write(self, send: Send) -> None:
        writer = self._writer
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            opening = writer.opening()
            if opening:
                await self._send(send, opening)
            await self._send(send, await self._write_events(send), more=False)
        finally:
            await self._stream.aclose()
            if (
                close := getattr(writer, "close", None)
            ) is not None:  # it wants to know, as `StreamWriter` says
                close()

    async def _write_events(self, send: Send) -> bytes:
        """Write what comes; what is left to write at the end."""
        writer = self._writer
        try:
            async for batch in self._stream:
                written = writer.events(batch)
                if written:
                    await self._send(send, written)
            return writer.finish()
        except HeadraceError as error:
            return writer.failure(error)
        except OSError:
            raise
        except Exception:  # it must end this reply only
            LOG.exception("a reply cannot be written")
            return writer.failure(HeadraceError("the server failed; its log has the details"))

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Pass bytes on in slices. The protocol cuts the connection of a reader that takes none."""
        for start in range(0, max(len(data), 1), SLICE_BYTES):
            last = start + SLICE_BYTES >= len(data)
            await send(
                {
                    "type": "http.response.body",
                    "body": data[start : start + SLICE_BYTES],
                    "more_body": more or not last,
                }
            )


def sse_event(body: msgspec.Struct, name: str | None = None) -> bytes:
    """One event: `event: name` where there is one, `data: {json}`, and an empty line."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encoder.encode(body) + b"\n\n"


class SseTemplate:
    """Events that differ in one part: what stands before and after it is encoded once.

    `new_body` makes a body around a part that is encoded already.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, new_body: Callable[[msgspec.Raw], msgspec.Struct]) -> None:
        self._before, _, self._after = sse_event(new_body(msgspec.Raw(_PLACE))).partition(_PLACE)

    def event(self, part: msgspec.Struct) -> bytes:
        """The event with that part."""
        return b"%b%b%b" % (self._before, _encoder.encode(part), self._after)


def sse_content(description: str, *bodies: type[msgspec.Struct], typed: bool = True) -> Content:
    """A stream of events (WHATWG HTML, "Server-sent events") in the OpenAPI document."""
    properties = {"event": {"type": "string"}, "data": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["data"], "description": description}
    return Content(MEDIA_TYPE, schema, bodies, typed)


def chunks(body: type[msgspec.Struct]) -> tuple[Content]:
    """The stream of an endpoint of OpenAI's."""
    text = f"With stream: true, `data:` lines of {body.__name__} (or an ErrorBody), then `data: [DONE]`."
    return (sse_content(text, body, typed=False),)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
