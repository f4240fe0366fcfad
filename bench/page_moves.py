"""How fast KV pages move, against memcpy and a plain socket of this machine.

    python bench/page_moves.py [--megabytes 256] [--page-kib 512]

Two processes stand for two workers: the parts, threads and checks are those of `headrace.workers`; this one
passes messages on, as the front. Beside a load compare the rates by processor time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from headrace.cluster.sealed_socket import seal
from headrace.engine.page_moves import PageExport, PageMoves
from headrace.engine.scheduler.moved_pages import ReservedPages
from headrace.executors.page_memory import PageMemory
from headrace.workers.page_exports import PageExports
from headrace.workers.page_imports import PageImports
from headrace.workers.protocol import (
    BeginImport,
    EndImport,
    ExportEnded,
    ExportPages,
    FromWorker,
    ImportEnded,
    ImportPart,
    PagesExported,
    PartTaken,
    frame,
    read_from_worker,
    read_to_worker,
)
from headrace.workers.transport import Pipe

LAYERS = 32
KEY = bytes(32)


class Loop:
    """What an engine does at once when it is idle."""

    def __init__(self, memory: PageMemory, pages: int) -> None:
        self.memory, self._pages = memory, list(range(pages))

    def export(self, export: PageExport) -> None:
        export.sink(self._pages, True)

    def release(self, export: PageExport) -> None: ...

    def reserve(self, root: object, tokens: tuple[int, ...], sink: Callable[[ReservedPages], None]) -> None:
        sink(ReservedPages((True, "", ""), tokens, [], self._pages))

    def commit(self, reserved: ReservedPages, count: int, sink: Callable[[int], None]) -> None:
        sink(count)


def worker(end: Any, pages: int, page_bytes: int, sealed: bool) -> None:
    """As `workers.engine_server`, of pages alone."""
    if sealed:
        end = seal(end, KEY, is_front=False)
    parts = [np.ones(pages * (page_bytes // LAYERS), np.uint8) for _ in range(LAYERS)]
    loop = cast("PageMoves", Loop(PageMemory(parts, pages, "bench"), pages))
    pipe: Pipe[FromWorker] = Pipe(end, lambda items: b"".join(map(frame, items)), "events")
    exports, imports = PageExports(loop, pipe.put), PageImports(loop, "bench", pipe.put)
    while (body := pipe.read()) is not None:
        match read_to_worker(body):
            case ExportPages() as order:
                exports.begin(order)
            case PartTaken(move):
                exports.taken(move)
            case BeginImport() | ImportPart() | EndImport() as order:
                imports.take(order)
            case _:
                pass
    os._exit(0)


class Worker:
    """The front's end of one."""

    def __init__(self, pages: int, page_bytes: int, *, tcp: bool) -> None:
        end, theirs = _connected() if tcp else socket.socketpair()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=worker, args=(theirs, pages, page_bytes, tcp), daemon=True)
        self.process.start()
        theirs.close()
        ours = cast("socket.socket", seal(end, KEY, is_front=True)) if tcp else end
        self.pipe: Pipe[bytes] = Pipe(ours, b"".join, "orders", eager=True)

    def read(self, into: queue.SimpleQueue[tuple[Worker, FromWorker]]) -> None:
        while (body := self.pipe.read()) is not None:
            into.put((self, read_from_worker(body)))


def moved_s(pages: int, page_bytes: int, *, tcp: bool, repeats: int) -> tuple[float, float]:
    """The fastest of some moves, and the processor time of all processes for one."""
    source, target = (Worker(pages, page_bytes, tcp=tcp) for _ in range(2))
    reports: queue.SimpleQueue[tuple[Worker, FromWorker]] = queue.SimpleQueue()
    for one in (source, target):
        threading.Thread(target=one.read, args=(reports,), daemon=True).start()
    best, cpu_s = float("inf"), _cpu_s()
    for move in range(repeats):
        began_s = time.perf_counter()
        target.pipe.put(frame(BeginImport(move, (True, "", ""), (), "bench")))
        source.pipe.put(frame(ExportPages(move, (True, "", ""), (), 0, "", False, not tcp)))
        while True:
            _, report = reports.get(timeout=60)
            if isinstance(report, PagesExported):
                target.pipe.put(frame(ImportPart(move, report.part)))
            elif isinstance(report, PartTaken):
                source.pipe.put(frame(report))
            elif isinstance(report, ExportEnded):
                target.pipe.put(frame(EndImport(move)))
            elif isinstance(report, ImportEnded):
                assert report.tokens == pages and not report.problem, report
                break
        best = min(best, time.perf_counter() - began_s)
    for one in (source, target):
        one.pipe.close()
        one.process.join(5)
    return best, (_cpu_s() - cpu_s) / repeats


def _cpu_s() -> float:
    """Of this process and its children that have ended."""
    return sum(os.times()[:4])


def memcpy_s(size: int, repeats: int) -> tuple[float, float]:
    """One copy by one thread."""
    a, b = np.ones(size, np.uint8), np.ones(size, np.uint8)
    best, cpu_s = float("inf"), _cpu_s()
    for _ in range(repeats):
        began_s = time.perf_counter()
        np.copyto(b, a)
        best = min(best, time.perf_counter() - began_s)
    return best, (_cpu_s() - cpu_s) / repeats


def socket_s(size: int, repeats: int) -> tuple[float, float]:
    """A plain connection of loopback, received in place."""
    best, cpu_s = float("inf"), _cpu_s()
    for _ in range(repeats):
        end, theirs = _connected()
        data = bytearray(size)
        began_s = time.perf_counter()
        process = os.fork()
        if process == 0:
            theirs.sendall(memoryview(data))
            os._exit(0)
        left = memoryview(data)
        while left:
            left = left[end.recv_into(left) :]
        best = min(best, time.perf_counter() - began_s)
        os.waitpid(process, 0)
        end.close()
        theirs.close()
    return best, (_cpu_s() - cpu_s) / repeats


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        end = socket.create_connection(listener.getsockname())
        return end, listener.accept()[0]


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=256)
    options.add_argument("--page-kib", type=int, default=512, help="of one page in all layers")
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    page_bytes = given.page_kib << 10
    pages = (given.megabytes << 20) // page_bytes
    size = pages * page_bytes
    found = {
        "memcpy": memcpy_s(size, given.repeats),
        "shared_memory": moved_s(pages, page_bytes, tcp=False, repeats=given.repeats),
        "socket": socket_s(size, given.repeats),
        "sealed_tcp": moved_s(pages, page_bytes, tcp=True, repeats=given.repeats),
    }
    rates = {
        name: {"gb_s": size / wall_s / 1e9, "gb_per_cpu_s": size / cpu_s / 1e9}
        for name, (wall_s, cpu_s) in found.items()
    }
    of_limit = {
        f"{ours} of {limit}": found[limit][0] / found[ours][0]
        for ours, limit in (("shared_memory", "memcpy"), ("sealed_tcp", "socket"))
    }
    shown = {"bytes": size, "page_bytes": page_bytes, "load": os.getloadavg()[0]}
    print(json.dumps({**shown, **rates, **of_limit}, indent=2))


if __name__ == "__main__":
    main()
