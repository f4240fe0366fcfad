"""What gateways add to streams, side by side: latency, CPU, memory, start.

    python bench/gateway/beside.py RESULTS.json --litellm VENV/bin/litellm [--portkey start-server.js]
    python bench/gateway/beside.py RESULTS.json --report

Each call measures one round of all gateways and adds it to RESULTS.json; --report shows medians over the
rounds. The gateway has one core, the upstream and the client share another one. The packages of others are
installed by hand, each in an environment of its own: `pip install 'litellm[proxy]'`,
`npm install @portkey-ai/gateway`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gateways import CLIENT_CORE, START_S, Running, headrace, litellm, portkey
from streaming_upstream import Client, Streamed, Upstream

LEVELS = ((1, 4.0), (64, 6.0), (1000, 10.0))
"""Streams at the same time, and seconds."""
PACED = (20, 200)
"""Chunks of an answer, and milliseconds between them."""
COST_STREAMS, COST_S = 8, 4.0
LABELS = {
    "request_p50": "added to a request until it is sent on, p50, ms",
    "request_p99": "the same, p99",
    "chunk_p50": "added to a chunk, p50, ms",
    "chunk_p99": "the same, p99",
    "per_s": "requests per second",
    "failed": "failed",
}
Start = Callable[[int, Path], AbstractContextManager[Running]]


def quantile(values: list[float], share: float) -> float | None:
    """In milliseconds."""
    return None if not values else 1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))]


def shown(found: Streamed) -> dict[str, Any]:
    """A load as figures; milliseconds."""
    return {
        "requests": found.requests,
        "failed": found.failed,
        "error": found.error,
        "per_s": found.requests / found.elapsed_s,
        **{f"request_p{int(q * 100)}": quantile(found.requests_s, q) for q in (0.5, 0.99)},
        **{f"chunk_p{int(q * 100)}": quantile(found.chunks_s, q) for q in (0.5, 0.99)},
    }


async def levels(client: Client) -> dict[str, Any]:
    """Added latency by the number of streams."""
    found: dict[str, Any] = {}
    for streams, seconds in LEVELS:
        gc.collect()
        gc.disable()
        found[str(streams)] = shown(await client.load(streams, seconds, *PACED))
        gc.enable()
    return found


async def cost(client: Client, running: Running) -> dict[str, Any]:
    """CPU time of a request with one chunk, and of every further chunk. Microseconds."""
    per_request: dict[int, float] = {}
    for chunks in (1, 200):
        before_s = running.cpu_s()
        found = await client.load(COST_STREAMS, COST_S, chunks, 5)
        if not found.requests:
            return {"error": found.error}
        per_request[chunks] = (running.cpu_s() - before_s) / found.requests
    return {
        "request_us": 1e6 * per_request[1],
        "chunk_us": 1e6 * (per_request[200] - per_request[1]) / 199,
    }


async def measure(name: str, start: Start | None) -> dict[str, Any]:
    """One gateway, or without `start` the upstream itself."""
    upstream = Upstream()
    await upstream.start()
    if start is None:
        client = Client(upstream, upstream.port, "/v1/chat/completions", {}, "{}")
        await client.load(8, 1.0, 1, 0)
        return await levels(client)
    with tempfile.TemporaryDirectory() as folder, start(upstream.port, Path(folder)) as one:
        client = Client(upstream, one.port, one.path, one.headers, one.model)
        while not await client.answers():
            if time.perf_counter() - one.begun_s > START_S:
                return {"error": "never answered"}
            await asyncio.sleep(0.02)
        start_s, idle_mib = time.perf_counter() - one.begun_s, one.rss_mib()
        warm = await client.load(8, 2.0, 1, 5)
        print(f"{name}: started in {start_s:.2f} s, {warm.requests} requests to warm up {warm.error}")
        result: dict[str, Any] = {"start_s": start_s, "idle_mib": idle_mib}
        result |= await cost(client, one) | await levels(client)
        return result | {"loaded_mib": one.rss_mib()}


def imports(python: str, module: str) -> dict[str, float]:
    """Seconds and MiB of an import."""
    code = (
        "import time, resource; a = time.perf_counter(); import " + module + "; "
        "print(time.perf_counter() - a, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    seconds, mib = done.stdout.split()[-2:]
    return {"import_s": float(seconds), "import_mib": float(mib)}


async def one_round(arguments: argparse.Namespace) -> dict[str, Any]:
    """All gateways once."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    starts: dict[str, Start | None] = {"direct": None, "headrace": headrace}
    if arguments.litellm:
        starts["litellm"] = lambda port, folder: litellm(port, folder, arguments.litellm)
    if arguments.portkey:
        starts["portkey"] = lambda port, folder: portkey(port, folder, arguments.portkey)
    found: dict[str, Any] = {}
    for name in reversed(list(starts)) if arguments.reverse else starts:
        found[name] = await measure(name, starts[name])
    found["headrace"] |= imports(sys.executable, "headrace.gateway.routing_handler")
    if arguments.litellm:
        found["litellm"] |= imports(str(Path(arguments.litellm).parent / "python"), "litellm")
    return found


def median(rounds: list[dict[str, Any]], name: str, *path: str) -> float | None:
    """Of a figure over the rounds."""
    values: list[float] = []
    for one in rounds:
        value: Any = one.get(name)
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            values.append(value)
    return statistics.median(values) if values else None


def report(rounds: list[dict[str, Any]]) -> None:
    """Tables in Markdown; latencies less those without a gateway."""
    names = [name for name in rounds[0] if name != "direct"]
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    rows = {
        "CPU per request, us": ("request_us",),
        "CPU per chunk, us": ("chunk_us",),
        "start until it answers, s": ("start_s",),
        "import, s": ("import_s",),
        "import, MiB": ("import_mib",),
        "memory before requests, MiB": ("idle_mib",),
        "memory at the end, MiB": ("loaded_mib",),
    }
    for label, path in rows.items():
        print(f"| {label} | " + " | ".join(_text(median(rounds, name, *path)) for name in names) + " |")
    for streams, _ in LEVELS:
        for figure in ("request_p50", "request_p99", "chunk_p50", "chunk_p99", "per_s", "failed"):
            base = median(rounds, "direct", str(streams), figure) or 0.0
            if figure in ("per_s", "failed"):
                base = 0.0
            values = [median(rounds, name, str(streams), figure) for name in names]
            cells = [_text(None if value is None else value - base) for value in values]
            print(f"| {streams:,} streams: {LABELS[figure]} | " + " | ".join(cells) + " |")


def _text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--litellm", default="", help="its program")
    parser.add_argument("--portkey", default="", help="its start-server.js")
    parser.add_argument("--reverse", action="store_true", help="the other order")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    rounds: list[dict[str, Any]] = (
        json.loads(arguments.results.read_text()) if arguments.results.exists() else []
    )
    if not arguments.report:
        rounds.append(asyncio.run(one_round(arguments)))
        arguments.results.write_text(json.dumps(rounds, indent=1))
    report(rounds)


if __name__ == "__main__":
    main()
