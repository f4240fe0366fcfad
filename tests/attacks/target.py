"""The server that is attacked, and what attacks are made of."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

CHAT = b"/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
KEYS = ("neighbor", "attacker")
MIB = 2**20


@dataclass
class Target:
    """One attack's view of the server. What it opens with `connect` is closed after it."""

    port: int
    attack_s: float
    opened: ExitStack = field(default_factory=ExitStack)

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """A connection, which may have a small buffer for what is not read."""
        connection = self.opened.enter_context(socket.socket())
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def ask(self, data: bytes) -> bytes:
        """What comes back for `data` until the server hangs up."""
        connection = self.connect()
        with suppress(OSError):
            connection.sendall(data)
        return read_all(connection)

    def status(self, data: bytes) -> int:
        """The status of the final reply to `data`; 0 where there was none."""
        reply = self.ask(data).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        return int(reply.split(b" ", 2)[1]) if reply else 0

    def flood(self, head: bytes, part: bytes, limit: int = 64 * MIB, *, paced_s: float = 0.0) -> int:
        """Send `head`, then `part` again and again until the server hangs up, `limit` bytes are sent, or the
        attack is over; the number of bytes."""
        connection = self.connect()
        sent, until_s = 0, time.monotonic() + self.attack_s
        with suppress(OSError):
            connection.sendall(head)
            connection.settimeout(0.5)
            while sent < limit and time.monotonic() < until_s:
                connection.sendall(part)
                sent += len(part)
                time.sleep(paced_s)
        return sent

    def at_once(self, count: int, work: Callable[[], int]) -> list[int]:
        """What `count` threads find."""
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda _: work(), range(count)))

    def wait(self) -> None:
        """Hold what is open for the time of an attack."""
        time.sleep(self.attack_s)


def read_all(connection: socket.socket) -> bytes:
    """All bytes until the server hangs up."""
    reply = b""
    with suppress(OSError):
        while part := connection.recv(65536):
            reply += part
    return reply


def request(
    path: bytes = b"/health",
    *,
    method: bytes = b"GET",
    key: str = "",
    headers: bytes = b"connection: close\r\n",
    body: bytes = b"",
    length: int | None = None,
) -> bytes:
    """One request; `length` is declared where it is not that of `body`."""
    head = method + b" " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + headers
    if key:
        head += f"authorization: Bearer {key}\r\n".encode()
    if method == b"POST" and b"transfer-encoding" not in headers:
        head += b"content-length: %d\r\n" % (len(body) if length is None else length)
    return head + b"\r\n" + body


@dataclass(frozen=True)
class Attack:
    """`run` attacks and says in a few words what came of it; AssertionError where the server gave way.

    `memory_mib` is what the server may grow by.
    """

    name: str
    run: Callable[[Target], str]
    memory_mib: int = 32
