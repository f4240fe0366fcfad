"""A proxy of one statement, which lets DuckDB reach one web server and nothing else.

DuckDB follows redirects, has no setting against them, and looks names up itself. So its requests go through
this: another scheme, host or port than the dataset's is refused, and the name is looked up once.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from headrace.config.addresses import is_local_name, is_private

MAX_HEAD = 2**16
CONNECT_S = 10.0
_STACK = 2**19
_PORTS = {"http": 80, "https": 443}
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OffOrigin(Exception):
    """A request that leads elsewhere."""


class OriginProxy:
    """Listens on 127.0.0.1 until its process ends. `refused` says why requests were refused."""

    def __init__(self, origin: str, *, allow_private: bool) -> None:
        parts = urlsplit(origin)
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._allow_private = allow_private or is_local_name(self._host)
        self._addresses: list[str] = []
        self.refused: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        before = threading.stack_size(_STACK)  # stacks count as memory of the statement
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        threading.stack_size(before)

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, sock=self._socket, limit=MAX_HEAD)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            head = await reader.readuntil(b"\r\n\r\n")
            try:
                await self._answer(head, (reader, writer))
            except OffOrigin as refused:
                self.refused.append(str(refused))
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            except OSError:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
        with suppress(OSError):
            writer.close()

    async def _answer(self, head: bytes, client: Peer) -> None:
        line, _, fields = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        if method == "CONNECT":
            self._check("https", urlsplit(f"//{target}"), target)
            server = await self._connect()
            client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(client[0], server[1]), _copy(server[0], client[1]))
            return
        parts = urlsplit(target)
        self._check(parts.scheme, parts, target)
        if method not in ("GET", "HEAD"):
            raise OffOrigin(f"the method {method[:20]} is not one that reads")
        server = await self._connect()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kept = [
            one for one in fields.split(b"\r\n") if not one.lower().startswith((b"proxy-", b"connection:"))
        ]
        request = f"{method} {path} {version}\r\nConnection: close\r\n".encode("latin-1")
        server[1].write(
            request + b"\r\n".join(kept)
        )  # the only one of this connection: the next is checked, too
        await _copy(server[0], client[1])

    def _check(self, scheme: str, parts: SplitResult, target: str) -> None:
        port = parts.port or _PORTS.get(scheme)
        if (scheme, parts.hostname, port) != (self._scheme, self._host, self._port):
            shown = f"{scheme}://{parts.netloc}"[:100] if parts.netloc else target[:100]
            raise OffOrigin(f"it redirects to {shown}: give the address that it leads to as the dataset's")

    async def _connect(self) -> Peer:
        if not self._addresses:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            addresses = [str(one[4][0]) for one in found]
            if not self._allow_private and any(map(is_private, addresses)):
                raise OffOrigin(
                    f"{self._host} leads to a private address: set allow_private if that is meant"
                )
            self._addresses = addresses
        for number, address in enumerate(self._addresses, 1):
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(address, self._port)
            except OSError:
                if number == len(self._addresses):
                    raise
        raise OSError


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await source.read(MAX_HEAD):
            target.write(part)
            await target.drain()
    with suppress(OSError):
        target.close()
