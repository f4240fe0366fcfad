"""The package's load client on loopback, and statistics over many exchanges."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from headrace.bench.serve import http_client as client
from headrace.bench.serve.http_client import Address, Exchange, finish, http_request

__all__ = [
    "Exchange",
    "begin",
    "fetch",
    "finish",
    "jain",
    "percentile",
    "post",
    "processor_s",
    "served",
    "worker_processes",
]


def post(path: str, body: object, **headers: str) -> bytes:
    """The bytes of a POST request with a JSON body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_request(Address("localhost", 80), "POST", path, named, body)


async def begin(port: int, request: bytes, *, keep_body: bool = True) -> Exchange:
    """Connect and send `request`; the response arrives while the event loop runs."""
    return await client.begin(Address("127.0.0.1", port), request, keep_body=keep_body)


async def fetch(port: int, request: bytes, *, keep_body: bool = True, timeout_s: float = 300.0) -> Exchange:
    """A complete exchange."""
    return await client.fetch(Address("127.0.0.1", port), request, keep_body=keep_body, timeout_s=timeout_s)


def jain(values: list[float]) -> float:
    """Jain's fairness index (Jain, Chiu and Hawe 1984): 1 if all are equal, 1 / n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values: list[float], share: float) -> float:
    """The value below which a fraction `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def worker_processes(
    port: int, server: psutil.Process, requests: dict[str, bytes]
) -> dict[str, psutil.Process]:
    """The process of each model: they are loaded one after the other, by a request to each."""
    found: dict[str, psutil.Process] = {}
    for model, request in requests.items():
        exchange = await fetch(port, request)
        if exchange.status != 200:
            raise SystemExit(f"{model}: {exchange.status}: {bytes(exchange.body[:300])!r}")
        known = {one.pid for one in found.values()}
        new = [one for one in server.children(recursive=True) if one.pid not in known and is_worker(one)]
        [found[model]] = new
    return found


def is_worker(process: psutil.Process) -> bool:
    """Whether a process runs a model: a program, or a fork of the process that forks workers."""
    parent = process.parent()
    is_fork = parent is not None and "headrace.workers.fork_parent" in parent.cmdline()
    return is_fork or "headrace.workers" in process.cmdline()


def processor_s(process: psutil.Process) -> float:
    """The processor time of a process, in seconds."""
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def served(table: str, program: Sequence[str] = ("-m", "headrace")) -> Generator[tuple[int, int]]:
    """The port and the process id of a server of its own, whose headrace.toml is `table`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "headrace.toml").write_text(table)
        command = [sys.executable, *program, "serve", "--port", "0", "--store", f"{folder}/store.sqlite3"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            address = re.search(r"on http://[^:]+:(\d+)", line)
            assert address is not None, line
            yield int(address.group(1)), server.pid
        finally:
            server.terminate()
            server.wait()
