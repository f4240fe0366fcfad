"""Server-sent events of an untrusted server: split into events, with a limit on everything.

WHATWG HTML, "Server-sent events": lines end with LF, CRLF or CR, an event with an empty line.
"""

from __future__ import annotations

from msgspec import Struct

MAX_LINE_BYTES = 2**20
MAX_EVENT_BYTES = 4 * 2**20
_BOM = b"\xef\xbb\xbf"


class SseError(Exception):
    """The stream breaks a limit; the message says which."""


class SseEvent(Struct, frozen=True):
    """One event; `name` is "" where none was given, `data` all its data lines."""

    name: str
    data: bytes


class SseSplitter:
    """Feed it bytes in any pieces. Time is linear in the bytes, memory is bounded by one event."""

    def __init__(
        self, *, max_line_bytes: int = MAX_LINE_BYTES, max_event_bytes: int = MAX_EVENT_BYTES
    ) -> None:
        self._max_line, self._max_event = max_line_bytes, max_event_bytes
        self._held = bytearray()
        self._after_return = False
        self._started = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes. Raises SseError."""
        if b"\r" in data or self._after_return:
            data = self._with_line_feeds(data)
        held = self._held
        searched = max(0, len(held) - 1)
        held += data
        if not self._started and len(held) >= len(_BOM):
            self._started = True
            if held.startswith(_BOM):
                del held[: len(_BOM)]
                searched = 0
        events: list[SseEvent] = []
        start = 0
        while (end := held.find(b"\n\n", searched)) >= 0:
            self._check(end - start)
            event = self._event(bytes(held[start:end]))
            if event is not None:
                events.append(event)
            start = searched = end + 2
        if start:
            del held[:start]
        self._check(len(held))
        return events

    def finish(self) -> list[SseEvent]:
        """The event that the end of the stream completes: some servers leave out the last empty line."""
        event = self._event(bytes(self._held).rstrip(b"\n"))
        self._held.clear()
        return [] if event is None else [event]

    def _with_line_feeds(self, data: bytes) -> bytes:
        """`data` with LF at all ends of lines; a CRLF may be split between two pieces."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r") or (self._after_return and not data)
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, size: int) -> None:
        if size > self._max_event:
            raise SseError(f"sent an event of more than {self._max_event:,} bytes")

    def _event(self, block: bytes) -> SseEvent | None:
        if block.startswith(b"data: ") and b"\n" not in block:  # nearly all
            if len(block) > self._max_line:
                raise SseError(f"sent a line of more than {self._max_line:,} bytes")
            return SseEvent("", block[6:])
        name, data = "", list[bytes]()
        for line in block.split(b"\n"):
            if len(line) > self._max_line:
                raise SseError(f"sent a line of more than {self._max_line:,} bytes")
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
        return SseEvent(name, b"\n".join(data)) if data else None
