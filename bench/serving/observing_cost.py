"""What it costs a server's throughput that somebody watches it: alternated pairs of the same load, medians.

    python bench/serving/observing_cost.py otel     # OpenTelemetry on or off, goal <= 1 %
    python bench/serving/observing_cost.py live     # a reader of /v1/live, or none, goal <= 0.5 %

`otel` runs two servers, one of which sends spans and metrics to a collector in a process of its own that
reads and forgets them. `live` is one server. The load is closed: so many requests at once, each a chat with a
short prompt. Three minutes each; nothing else may run. Processor time per token is told, too: it depends less
on what else runs. Nothing is drafted, so that a token costs the same in all halves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import psutil
from load_client import begin, fetch, post, processor_s, served

from headrace.bench.serve.http_client import Address, http_request

VARIABLES = {"OTEL_BSP_SCHEDULE_DELAY": "1000", "OTEL_METRIC_EXPORT_INTERVAL": "5000"}
TABLE = 'speculative = "off"\n[models."{model}"]\n'
Run = Callable[[], Awaitable[tuple[float, float]]]
"""Gives tokens per second, and processor seconds of the server per token."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("otel", "live", "collector"), help="what is switched on and off")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each half of a pair")
    parser.add_argument("--at-once", type=int, default=8, help="requests")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    return parser.parse_args()


async def collect_nothing() -> None:
    """A collector that takes everything and keeps nothing."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            await reader.readexactly(int(fields[b"content-length"]))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def collector() -> Iterator[dict[str, str]]:
    """The variables that make a server send to a collector of its own."""
    with subprocess.Popen(
        [sys.executable, __file__, "collector"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        address = f"http://127.0.0.1:{int(child.stdout.readline())}"
        try:
            yield {"OTEL_EXPORTER_OTLP_ENDPOINT": address, **VARIABLES}
        finally:
            child.terminate()


class Load:
    """Requests at once against one server."""

    def __init__(self, port: int, pid: int, options: argparse.Namespace) -> None:
        body = {
            "messages": [{"role": "user", "content": "list all files by size"}],
            "max_tokens": options.tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        self._process = psutil.Process(pid)
        self._port, self._request, self._options = port, post("/v1/chat/completions", body), options

    async def run(self) -> tuple[float, float]:
        """Ask until the time is over; what has begun by then is waited for and counts. See `Run`."""
        busy_s, began_s = self._busy_s(), time.perf_counter()
        ended = await asyncio.gather(*(self._ask(began_s) for _ in range(self._options.at_once)))
        tokens = sum(ended) * self._options.tokens
        return tokens / (time.perf_counter() - began_s), (self._busy_s() - busy_s) / tokens

    def _busy_s(self) -> float:
        """Of the server and the processes of its models."""
        return sum(map(processor_s, [self._process, *self._process.children(recursive=True)]))

    async def _ask(self, began_s: float) -> int:
        count = 0
        while time.perf_counter() - began_s < self._options.seconds:
            exchange = await fetch(self._port, self._request, keep_body=False)
            assert exchange.status == 200, exchange.status
            count += 1
        return count


@contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


async def compare(options: argparse.Namespace, off: Run, on: Run) -> None:
    """The pairs, the order turned around in every second one."""
    for run in (off, on):
        await run()  # warm
    slower: list[float] = []
    busier: list[float] = []
    speeds: list[float] = []
    for number in range(options.pairs):
        if number % 2:
            watched = await on()
            alone = await off()
        else:
            alone = await off()
            watched = await on()
        slower.append(1 - watched[0] / alone[0])
        busier.append(watched[1] / alone[1] - 1)
        speeds.append(alone[0])
    low, *_, high = statistics.quantiles(slower, n=20)
    print(
        f"{options.what}: costs {statistics.median(slower):+.2%} of throughput, median of {options.pairs} "
        f"pairs of 2 x {options.seconds:g} s (5 % to 95 %: {low:+.2%} to {high:+.2%}); "
        f"{statistics.median(speeds):,.0f} tokens/s without; processor time per token "
        f"{statistics.median(busier):+.2%}"
    )


async def with_otel(options: argparse.Namespace) -> None:
    table = TABLE.format(model=options.model)
    with collector() as otel, served(table) as off, variables(otel), served(table) as on:
        await compare(options, Load(*off, options).run, Load(*on, options).run)


async def with_live(options: argparse.Namespace) -> None:
    with served(TABLE.format(model=options.model)) as (port, pid):
        load = Load(port, pid, options)

        request = http_request(Address("localhost", port), "GET", "/v1/live", {})

        @asynccontextmanager
        async def reader() -> AsyncIterator[None]:
            stream = await begin(port, request, keep_body=False)
            try:
                yield
            finally:
                assert stream.status == 200 and stream.transport is not None, stream.status
                stream.transport.close()

        async def read() -> tuple[float, float]:
            async with reader():
                return await load.run()

        busy_s, began_s = processor_s(psutil.Process(pid)), time.perf_counter()
        async with reader():
            await asyncio.sleep(10)
        spent = (processor_s(psutil.Process(pid)) - busy_s) / (time.perf_counter() - began_s)
        print(f"live: a reader takes {spent:.2%} of a core of an idle server")
        await compare(options, load.run, read)


if __name__ == "__main__":
    asked = arguments()
    work = {"otel": with_otel, "live": with_live}
    asyncio.run(collect_nothing() if asked.what == "collector" else work[asked.what](asked))
