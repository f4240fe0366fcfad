"""Gives KV pages of this worker to another one: in parts, through shared memory or with the messages."""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Callable

import numpy as np
from msgspec import Struct, field

from headrace.engine.page_moves import PageExport, PageMoves
from headrace.executors.page_memory import PageMemory
from headrace.workers.protocol import ExportEnded, ExportPages, PagePart, PageReport, PagesExported

PART_BYTES = 4 << 20
"""About so much at once: what a message of tokens may have to wait for."""
WINDOW_PARTS = 4
"""Parts that were not taken yet, of all exports: a bound on memory."""


class _Export(Struct, eq=False):
    order: ExportPages
    engine: PageExport
    sent: int  # pages, those before the first one counted
    slots: list[int] = field(default_factory=list[int])  # of its parts under way, the oldest first
    stopped: bool = False


class PageExports:
    """One thread copies and sends, so that the engine's does not wait for it."""

    def __init__(self, moves: PageMoves, put: Callable[[PageReport], None]) -> None:
        self._moves, self._put = moves, put
        self._exports: dict[int, _Export] = {}
        self._free = list(range(WINDOW_PARTS))
        self._changed = threading.Condition()  # guards the fields above
        self._work: queue.SimpleQueue[tuple[_Export, list[int], bool] | None] = queue.SimpleQueue()
        self._ring: _SharedRing | None = None
        threading.Thread(target=self._run, name="headrace-page-exports", daemon=True).start()

    # -- the reader's thread --------------------------------------------------------------------------

    def begin(self, order: ExportPages) -> None:
        """Start one."""
        if self._moves.memory is None:
            self._put(ExportEnded(order.move, "this model keeps what is not in pages"))
            return
        engine = PageExport(
            order.root,
            order.tokens,
            lambda pages, last: self._work.put((export, pages, last)),
            order.request,
            order.follows,
        )
        export = _Export(order, engine, 0)
        with self._changed:
            self._exports[order.move] = export
        self._moves.export(engine)

    def finish(self, move: int) -> None:
        """Its request computes no more."""
        export = self._exports.get(move)
        if export is not None:
            self._moves.finish(export.engine)

    def taken(self, move: int) -> None:
        """The oldest part under way was read."""
        with self._changed:
            export = self._exports.get(move)
            if export is not None and export.slots:
                self._free.append(export.slots.pop(0))
                self._changed.notify()
                if export.stopped and not export.slots:
                    del self._exports[move]

    def stop(self, move: int) -> None:
        """Nobody wants more of it, and what was sent has been read or never will be."""
        with self._changed:
            export = self._exports.pop(move, None)
            if export is None:
                return
            export.stopped = True
            self._free += export.slots
            export.slots.clear()
            self._changed.notify()
        self._moves.release(export.engine)

    def close(self) -> None:
        """End the thread."""
        self._work.put(None)

    # -- the thread of exports ------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            export, pages, last = item
            problem = ""
            try:
                self._send(export, pages)
            except Exception as error:  # a move that fails costs time, never a worker
                problem, last = type(error).__name__, True
            if last and not export.stopped:
                self._end(export, problem)

    def _end(self, export: _Export, problem: str) -> None:
        self._moves.release(export.engine)
        with self._changed:
            export.stopped = True
            if not export.slots:
                self._exports.pop(export.order.move, None)
        self._put(ExportEnded(export.order.move, problem))

    def _send(self, export: _Export, pages: list[int]) -> None:
        """Send those of the new pages that are wanted."""
        memory = self._moves.memory
        if memory is None:
            raise RuntimeError("the engine has stopped")
        pages = pages[max(0, export.order.first - export.sent) :]
        export.sent = max(export.sent, export.order.first)
        at_once = max(1, PART_BYTES // memory.page_bytes)
        for begin in range(0, len(pages), at_once):
            some = pages[begin : begin + at_once]
            slot = self._slot(export)
            if slot is None:
                return
            part = self._part(memory, some, export, slot, at_once)
            export.sent += len(some)
            self._put(PagesExported(export.order.move, part))

    def _slot(self, export: _Export) -> int | None:
        """Wait for room; None where the export was stopped."""
        with self._changed:
            while not self._free and not export.stopped:
                self._changed.wait()
            if export.stopped:
                return None
            export.slots.append(self._free.pop())
            return export.slots[-1]

    def _part(
        self, memory: PageMemory, pages: list[int], export: _Export, slot: int, at_once: int
    ) -> PagePart:
        size = len(pages) * memory.page_bytes
        if not export.order.shares:
            data = np.empty(size, np.uint8)
            found = memory.read(pages, data)
            return PagePart(export.sent, len(pages), found, None, data.data)
        if self._ring is None:
            self._ring = _SharedRing(at_once * memory.page_bytes)
        offset = slot * self._ring.part_bytes
        found = memory.read(pages, self._ring.memory[offset : offset + size])
        return PagePart(
            export.sent, len(pages), found, (os.getpid(), self._ring.file, offset), memoryview(b"")
        )


class _SharedRing:
    """Memory for the parts under way, which another process of this user maps by /proc. It is gone with this
    process, however that ends."""

    def __init__(self, part_bytes: int) -> None:
        self.part_bytes = part_bytes
        self.file = os.memfd_create("headrace-pages")
        os.ftruncate(self.file, part_bytes * WINDOW_PARTS)
        self._map = mmap.mmap(self.file, part_bytes * WINDOW_PARTS)
        self.memory = np.frombuffer(self._map, np.uint8)
