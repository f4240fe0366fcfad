"""A reply that is written to a client and held, so that it can be read again from any event on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

MAX_HELD_BYTES = 16 * 2**20
"""Of one reply; a longer one cannot be read again."""
STREAMS = {b"text/event-stream": b"\n\n", b"application/x-ndjson": b"\n"}
"""What ends an event in each type of stream."""
NOT_KEPT = (b"content-length", b"x-request-id", b"request-id", b"connection")


class HeldReply:
    """The parts of a reply: the events of a stream, each with its number as `id`, or the body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.parts: list[bytes] = []
        self.is_stream = self.is_whole = self.is_over = self.is_cut = False
        self._end = b""
        self._rest = b""
        self._bytes = 0
        self._changed = asyncio.Event()

    def take(self, message: Message) -> Message:
        """Note a message to the client; the message as it is sent."""
        if message["type"] == "http.response.start":
            self._start(message)
            return message
        body, more = message.get("body", b""), message.get("more_body", False)
        if self.is_stream and self._end == b"\n\n":
            body = self._numbered(body, is_last=not more)
            message = {**message, "body": body}
        elif self.is_stream:
            self._lines(body, is_last=not more)
        else:
            self._hold(body)
        self.is_whole = self.is_whole or not more
        self._tell()
        return message

    def end(self) -> None:
        """Nothing more comes."""
        self.is_over = True
        self._tell()

    async def parts_from(self, first: int) -> AsyncGenerator[bytes]:
        """The parts from that number on, as they come."""
        at = first
        while True:
            changed = self._changed
            if at < len(self.parts):
                yield b"".join(self.parts[at:])
                at = len(self.parts)
            elif self.is_over or self.is_whole:
                return
            else:
                await changed.wait()

    async def started(self) -> None:
        """Wait until its status is known, or it has ended without one."""
        while not self.status and not self.is_over:
            await self._changed.wait()

    def _start(self, message: Message) -> None:
        self.status = message["status"]
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        self.headers = tuple(one for one in headers if one[0] not in NOT_KEPT)
        kind = dict(headers).get(b"content-type", b"").partition(b";")[0]
        self._end = STREAMS.get(kind, b"")
        self.is_stream = bool(self._end)
        self._tell()

    def _numbered(self, body: bytes, *, is_last: bool) -> bytes:
        """Whole events, with their numbers before them."""
        *whole, self._rest = (self._rest + body).split(b"\n\n")
        if is_last and self._rest:
            whole.append(self._rest)
            self._rest = b""
        written: list[bytes] = []
        for event in whole:
            part = b"id: %d\n%b\n\n" % (len(self.parts), event)
            written.append(part)
            self._hold(part)
        return b"".join(written)

    def _lines(self, body: bytes, *, is_last: bool) -> None:
        *whole, self._rest = (self._rest + body).split(b"\n")
        if is_last and self._rest:
            whole.append(self._rest)
        for line in whole:
            self._hold(line + b"\n")

    def _hold(self, part: bytes) -> None:
        self._bytes += len(part)
        if self._bytes > MAX_HELD_BYTES:
            self.is_cut = True
            part = b""
        self.parts.append(part)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def nobody(message: Message) -> None:
    """The `send` of a reply that has no client any more."""
