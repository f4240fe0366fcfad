"""A low-overhead HTTP client over raw sockets, for loads beyond what an SDK can generate."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import Mapping

import httptools
from msgspec import Struct, field


class Address(Struct, frozen=True):
    """Host and port of a server."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Exchange(asyncio.Protocol, Struct, eq=False):
    """One request on one connection, and its response. Times are of `time.perf_counter`.

    `reads` has the time and the number of events of each read that completed an event; `writes` counts the
    chunks framed by the server; `body` is the whole body if `keep_body`, else its last bytes. `lost`: the
    connection ended before the response did, or the data was not HTTP.
    """

    request: bytes
    keep_body: bool = True
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytearray = field(default_factory=bytearray)
    body_bytes: int = 0
    reads: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    writes: int = 0
    sent_s: float = 0.0
    headers_s: float = 0.0
    ended_s: float = 0.0
    lost: bool = False
    transport: asyncio.Transport | None = None
    ended: asyncio.Future[None] | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    _parser: httptools.HttpResponseParser | None = None
    _events: int = 0

    # -- callbacks of asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self.sent_s = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        assert self._parser
        self._events = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(lost=True)
        if self._events:
            self.reads.append((time.perf_counter(), self._events))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(lost=True)

    # -- callbacks of the parser ---------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser
        self.status = self._parser.get_status_code()
        self.headers_s = time.perf_counter()
        self.started.set()

    def on_body(self, data: bytes) -> None:
        # An event ends with an empty line, which does not occur in JSON; it may be split between two
        # reads.
        before = self.body[-2:]
        self._events += _ends(before + data) - _ends(before)
        self.body_bytes += len(data)
        if not self.keep_body:
            self.body = bytearray(data[-200:])
        else:
            self.body += data

    def on_chunk_complete(self) -> None:
        self.writes += 1

    def on_message_complete(self) -> None:
        self._end(lost=False)

    # -- results -------------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Number of server-sent events so far."""
        return sum(count for _, count in self.reads)

    @property
    def event_times_s(self) -> list[float]:
        """When each event was complete."""
        return [at for at, count in self.reads for _ in range(count)]

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between reads that completed events."""
        times = [at for at, _ in self.reads]
        return [after - before for before, after in itertools.pairwise(times)]

    def _end(self, *, lost: bool) -> None:
        if not self.ended_s:
            self.ended_s = time.perf_counter()
            self.lost = lost
            self.started.set()
            if self.transport is not None:
                self.transport.close()
            if self.ended is not None and not self.ended.done():
                self.ended.set_result(None)


def _ends(data: bytes | bytearray) -> int:
    return data.count(b"\n\n") + data.count(b"\n\r\n")


def http_request(
    address: Address, method: str, path: str, headers: Mapping[str, str], body: object = None
) -> bytes:
    """The bytes of a request, with a JSON body if `body` is given."""
    content = b"" if body is None else json.dumps(body).encode()
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{address.port}", f"content-length: {len(content)}"]
    lines += ["content-type: application/json"] if content else []
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def begin(address: Address, request: bytes, *, keep_body: bool = True) -> Exchange:
    """Connect and send `request`; the response arrives while the event loop runs. Raises OSError."""
    loop = asyncio.get_running_loop()
    exchange = Exchange(request, keep_body)
    exchange.ended = loop.create_future()
    await loop.create_connection(lambda: exchange, address.host, address.port, ssl=address.tls)
    return exchange


async def finish(exchange: Exchange, timeout_s: float = 300.0) -> Exchange:
    """Wait for the end of the response. Raises TimeoutError after closing the connection."""
    assert exchange.ended is not None
    try:
        await asyncio.wait_for(exchange.ended, timeout_s)
    finally:
        if exchange.transport is not None:
            exchange.transport.close()
    return exchange


async def fetch(
    address: Address, request: bytes, *, keep_body: bool = True, timeout_s: float = 300.0
) -> Exchange:
    """A complete exchange."""
    return await finish(await begin(address, request, keep_body=keep_body), timeout_s)
