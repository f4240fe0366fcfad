"""A client that costs little: HTTP exchanges over raw sockets, for load far beyond what an SDK could make."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field

import httptools


@dataclass(slots=True, eq=False)
class Exchange(asyncio.Protocol):
    """One request on one connection, and what came back. Times are of `time.perf_counter`.

    `reads` has a time and the number of events of each read that completed one, `writes` counts the chunks
    that the server framed; `body` is kept where `keep_body`, else only its last bytes. `lost` says that the
    connection ended before the reply did.
    """

    request: bytes
    keep_body: bool = True
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
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

    # -- what asyncio calls -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self.sent_s = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        assert self._parser
        self._events = 0
        self._parser.feed_data(data)
        if self._events:
            self.reads.append((time.perf_counter(), self._events))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(lost=True)

    # -- what the parser calls ----------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser
        self.status = self._parser.get_status_code()
        self.headers_s = time.perf_counter()
        self.started.set()

    def on_body(self, data: bytes) -> None:
        # An event ends with an empty line, which no JSON holds; the border of two reads may cut it.
        self._events += (self.body[-1:] + data).count(b"\n\n")
        self.body_bytes += len(data)
        self.body = self.body + data if self.keep_body else data[-200:]

    def on_chunk_complete(self) -> None:
        self.writes += 1

    def on_message_complete(self) -> None:
        self._end(lost=False)

    # -- what a test asks ---------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Server-sent events so far."""
        return sum(count for _, count in self.reads)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between reads that brought events."""
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


def post(path: str, body: object, **headers: str) -> bytes:
    """The bytes of a POST of JSON."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def begin(port: int, request: bytes, *, keep_body: bool = True) -> Exchange:
    """Connect to the loopback and send `request`; the reply arrives while the loop runs."""
    loop = asyncio.get_running_loop()
    exchange = Exchange(request, keep_body)
    exchange.ended = loop.create_future()
    await loop.create_connection(lambda: exchange, "127.0.0.1", port)
    return exchange


async def finish(exchange: Exchange, timeout_s: float = 300.0) -> Exchange:
    """Wait for the end of the reply, or of the connection."""
    assert exchange.ended is not None
    await asyncio.wait_for(exchange.ended, timeout_s)
    return exchange


async def fetch(port: int, request: bytes, *, keep_body: bool = True, timeout_s: float = 300.0) -> Exchange:
    """A whole exchange."""
    return await finish(await begin(port, request, keep_body=keep_body), timeout_s)


def jain(values: list[float]) -> float:
    """Jain's fairness index (Jain, Chiu and Hawe 1984): 1 where all are equal, 1 / n where one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
