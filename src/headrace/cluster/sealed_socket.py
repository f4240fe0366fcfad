"""A TCP connection between a front and a replica that both know a key: every record is authenticated.

Nothing is encrypted: a network that others can read needs a tunnel (docs/guides/cluster.md).
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from contextlib import suppress
from typing import cast

from headrace.errors import HeadraceError

MAX_RECORD_BYTES = 1 << 20
HANDSHAKE_S = 3.0
MIN_KEY_BYTES = 16
KEEP_ALIVE = {
    name: value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)
}
"""Seconds of silence until the other machine is asked, between two questions, and how many are left open."""
_NONCE_BYTES = 32
_TAG_BYTES = 16
_HEADER = struct.Struct("<I")
_SEQUENCE = struct.Struct("<Q")
_MAGIC = b"headrace-replica-1"


class NotAuthenticated(HeadraceError):
    """The other side of a connection does not know the cluster's key, or changed a message."""

    remedy = "See what else connects to the port of the replicas."


class SealedSocket:
    """What `workers.transport.Pipe` uses of a socket. A record is its length, bytes, and a tag of the
    direction's key over its number and bytes: nothing can be changed, left out, repeated or sent back."""

    def __init__(self, end: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._socket = end
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0
        self._left = memoryview(b"")

    def send(self, data: bytes, flags: int = 0) -> int:
        """Never at once: the writer's thread sends it."""
        raise BlockingIOError

    def sendall(self, data: bytes) -> None:
        """As records."""
        for begin in range(0, len(data), MAX_RECORD_BYTES):
            part = data[begin : begin + MAX_RECORD_BYTES]
            tag = _tag(self._send_key, self._sent, part)
            self._sent += 1
            self._socket.sendall(_HEADER.pack(len(part)) + part + tag)

    def recv(self, size: int) -> bytes:
        """Bytes of a record, empty at the end. A wrong record is an end: OSError."""
        if not self._left:
            self._left = memoryview(self._record())
        taken, self._left = self._left[:size], self._left[size:]
        return bytes(taken)

    @property
    def peer(self) -> str:
        """The address of the other side; "local" for a pair of sockets."""
        address = cast("tuple[str, int] | str", self._socket.getpeername())
        return address[0] if isinstance(address, tuple) else "local"

    def shutdown(self, how: int) -> None:
        """As a socket's."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """As a socket's."""
        self._socket.close()

    def _record(self) -> bytes:
        header = _exactly(self._socket, _HEADER.size)
        if not header:
            return b""
        (size,) = _HEADER.unpack(header)
        if not 0 < size <= MAX_RECORD_BYTES:
            raise OSError(f"a record of {size:,} bytes")
        body = _exactly(self._socket, size + _TAG_BYTES)
        part, tag = body[:size], body[size:]
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._received, part)):
            raise OSError("a record with a wrong tag")
        self._received += 1
        return part


def seal(end: socket.socket, key: bytes, *, is_front: bool) -> SealedSocket:
    """Both sides prove that they know the key, within HANDSHAKE_S. Raises NotAuthenticated, and closes."""
    until_s = time.monotonic() + HANDSHAKE_S
    try:
        end.settimeout(HANDSHAKE_S)
        with suppress(OSError):  # a socket pair has no such option
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own = secrets.token_bytes(_NONCE_BYTES)
        end.sendall(_MAGIC + own)
        said = _exactly(end, len(_MAGIC) + _NONCE_BYTES, until_s)
        if len(said) < len(_MAGIC) + _NONCE_BYTES or not said.startswith(_MAGIC):
            raise NotAuthenticated("the other side of a connection is no replica of headrace")
        other = said[len(_MAGIC) :]
        nonces = own + other if is_front else other + own
        keys = {
            side: hmac.digest(key, b"session " + side + nonces, "sha256") for side in (b"front", b"replica")
        }
        mine, its = (b"front", b"replica") if is_front else (b"replica", b"front")
        end.sendall(hmac.digest(keys[mine], b"proof", "sha256"))
        proof = _exactly(end, 32, until_s)
        if not hmac.compare_digest(proof, hmac.digest(keys[its], b"proof", "sha256")):
            raise NotAuthenticated("the other side of a connection does not know the cluster's key")
        end.settimeout(None)
        _keep_alive(end)
        return SealedSocket(end, keys[mine], keys[its])
    except (OSError, NotAuthenticated) as error:
        end.close()
        if isinstance(error, NotAuthenticated):
            raise
        raise NotAuthenticated(
            f"a connection of a replica ended before it was authenticated: {error}"
        ) from None


def _keep_alive(end: socket.socket) -> None:
    """Notice that the machine of the other side is gone, whoever waits for whom: a replica whose server
    vanished would stay for ever, as would a server that waits until a replica has loaded."""
    with suppress(OSError):  # a socket pair has no such options, and some systems have others
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _tag(key: bytes, number: int, part: bytes) -> bytes:
    return hmac.digest(key, _SEQUENCE.pack(number) + part, "sha256")[:_TAG_BYTES]


def _exactly(end: socket.socket, size: int, until_s: float | None = None) -> bytes:
    """So many bytes; none where the stream ends before the first. OSError where it ends within, and where
    they do not come until then, however few come at a time."""
    taken = memoryview(bytearray(size))
    left = taken
    while left:
        if until_s is not None:
            end.settimeout(max(until_s - time.monotonic(), 1e-3))
        count = end.recv_into(left)
        if not count:
            if len(left) < size:
                raise OSError("the connection was cut")
            return b""
        left = left[count:]
    return bytes(taken)
