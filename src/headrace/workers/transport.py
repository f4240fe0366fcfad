"""One end of a stream socket that carries frames: reads frames, and writes them from a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from headrace.workers.protocol import FRAME_LIMIT_BYTES, HEADER_BYTES, BadFrame

Item = TypeVar("Item")
_BUFFER_BYTES = 256 * 1024
CLOSE_S = 1.0


class Pipe(Generic[Item]):
    """`encode` turns all queued items into frames, on the writer thread; `put` never blocks.

    With `eager`, for items that are cheap to encode, `put` itself writes as much as the socket takes at once:
    waking a thread for each item costs more than writing it.
    """

    def __init__(
        self,
        end: socket.socket,
        encode: Callable[[Sequence[Item]], bytes],
        name: str,
        *,
        eager: bool = False,
    ) -> None:
        self._socket = end
        self._encode, self._eager = encode, eager
        self._read_ahead = bytearray()
        self._reading = threading.Lock()  # the socket is closed only when no thread reads from it
        self._waiting: list[Item] = []
        self._unsent = b""
        """The rest of an item that `put` could not write, before all that waits."""
        self._writing = False
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue an item for sending. No effect if the other side is gone; `read` reports that."""
        with self._wake:
            if self._eager and not (self._waiting or self._unsent or self._writing or self._closed):
                self._unsent = self._not_taken(self._encode([item]))
                if not self._unsent:
                    return
            else:
                self._waiting.append(item)
            self._wake.notify()

    def read(self) -> bytes | None:
        """The body of the next frame, None at the end; BadFrame if it is too long or truncated."""
        with self._reading:
            header = self._take(HEADER_BYTES)
            if not header:
                return None
            size = int.from_bytes(header, "little")
            if size > FRAME_LIMIT_BYTES:
                raise BadFrame(f"a frame of {size:,} bytes, at most {FRAME_LIMIT_BYTES:,} are read")
            body = self._take(size) if len(header) == HEADER_BYTES else b""
        if len(header) < HEADER_BYTES or len(body) < size:
            raise BadFrame(f"a frame was cut short after {len(header) + len(body):,} bytes")
        return body

    def close(self) -> None:
        """Write queued items as far as the other side accepts them, then shut down both directions."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        with suppress(OSError):  # the other side closed first
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a blocked reader
        with self._reading:
            self._socket.close()

    def _take(self, size: int) -> bytes:
        """This many bytes, or fewer at the end of the stream."""
        while len(self._read_ahead) < size:
            try:
                part = self._socket.recv(_BUFFER_BYTES)
            except OSError:  # reset, or closed on this side
                part = b""
            if not part:
                break
            self._read_ahead += part
        taken = bytes(self._read_ahead[:size])
        del self._read_ahead[:size]
        return taken

    def _not_taken(self, data: bytes) -> bytes:
        """Write what the socket takes without waiting; the rest."""
        try:
            return data[self._socket.send(data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return data
        except OSError:
            return b""  # the other side is gone

    def _write(self) -> None:
        while True:
            with self._wake:
                self._writing = False
                while not (self._waiting or self._unsent or self._closed):
                    self._wake.wait()
                unsent, self._unsent = self._unsent, b""
                items, self._waiting = self._waiting, []
                self._writing = True
            if not (items or unsent):
                return
            try:
                self._socket.sendall(unsent + self._encode(items))
            except OSError:
                return  # the other side is gone
