"""A reply that is written to a client and held, so that it can be read again from any event on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

MAX_HELD_BYTES, MAX_ALL_HELD_BYTES = 4 * 2**20, 256 * 2**20
"""Of one reply, and of all that are being made; what is longer cannot be read again."""
STREAMS = {b"text/event-stream": b"\n\n", b"application/x-ndjson": b"\n"}
"""What ends an event in each type of stream."""
NOT_KEPT = (b"content-length", b"x-request-id", b"request-id", b"connection")


class HeldBytes:
    """How many bytes of replies are held."""

    def __init__(self) -> None:
        self.used = 0


class HeldReply:
    """The parts of a reply: the events of a stream, each with its number as `id`, or the body."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.parts: list[bytes] = []
        self.is_stream = self.is_whole = self.is_over = self.is_cut = False
        self._end = b""
        self._rest = b""
        self._bytes = 0
        self._changed: asyncio.Event | None = None  # while somebody waits

    def take(self, message: Message) -> Message:
        """Note a message to the client; the message as it is sent."""
        if message["type"] == "http.response.start":
            self._start(message)
            return message
        body, more = message.get("body", b""), message.get("more_body", False)
        if self.is_stream and self._end == b"\n\n":
            message["body"] = self._numbered(body, is_last=not more)
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
            if at < len(self.parts):
                yield b"".join(self.parts[at:])
                at = len(self.parts)
            elif self.is_over or self.is_whole:
                return
            else:
                await self._change()

    async def started(self) -> None:
        """Wait until its status is known, or it has ended without one."""
        while not self.status and not self.is_over:
            await self._change()

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
        if not self._rest and body.find(b"\n\n") == len(body) - 2:
            part = b"id: %d\n%b" % (len(self.parts), body)
            self._hold(part)
            return part
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
        self._held.used += len(part)
        if not self.is_cut and (self._bytes > MAX_HELD_BYTES or self._held.used > MAX_ALL_HELD_BYTES):
            self.is_cut = True
            self.parts = [b""] * len(self.parts)
        if self.is_cut:
            self.let_go()
            part = b""
        self.parts.append(part)

    def let_go(self) -> None:
        """It does not count any more."""
        self._held.used -= self._bytes
        self._bytes = 0

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


async def nobody(message: Message) -> None:
    """The `send` of a reply that has no client any more."""
