"""Takes KV pages of another worker into the prefix cache of this one."""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Callable

import numpy as np
from msgspec import Struct, field

from headrace.engine.page_moves import PageMoves
from headrace.engine.scheduler.moved_pages import ReservedPages
from headrace.executors.page_memory import Bytes, PageMemory
from headrace.workers.protocol import (
    BeginImport,
    EndImport,
    ImportEnded,
    ImportPart,
    PagePart,
    PageReport,
    PartTaken,
)

MAX_IMPORTS = 64
"""At a time: each holds pages that nobody else can use."""
MAX_MAPS = 64


class _Import(Struct, eq=False):
    reserved: ReservedPages | None = None
    waiting: list[PagePart] = field(default_factory=list[PagePart])  # until there are pages for them
    written: int = 0
    problem: str = ""
    ends: bool = False


class PageImports:
    """One thread checks and copies. A part that is damaged, or does not follow what is here, ends what is
    taken of its text: the rest is computed."""

    def __init__(self, moves: PageMoves, page_class: str, put: Callable[[PageReport], None]) -> None:
        self._moves, self._page_class, self._put = moves, page_class, put
        self._imports: dict[int, _Import] = {}  # the thread's own
        self._maps: dict[tuple[int, int], Bytes] = {}
        self._work: queue.SimpleQueue[BeginImport | ImportPart | EndImport | tuple[int, ReservedPages] | None]
        self._work = queue.SimpleQueue()
        threading.Thread(target=self._run, name="headrace-page-imports", daemon=True).start()

    def take(self, order: BeginImport | ImportPart | EndImport) -> None:
        """On the reader's thread."""
        self._work.put(order)

    def close(self) -> None:
        """End the thread."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            match item:
                case BeginImport() as order:
                    self._begin(order)
                case ImportPart(move, part):
                    self._arrived(move, part)
                case EndImport(move):
                    self._end(move)
                case (move, reserved):
                    self._reserved(move, reserved)

    def _begin(self, order: BeginImport) -> None:
        refusal = ""
        if order.page_class != self._page_class or self._moves.memory is None:
            refusal = f"pages of the class '{order.page_class}', this worker has '{self._page_class}'"
        elif len(self._imports) >= MAX_IMPORTS:
            refusal = f"{MAX_IMPORTS} texts are imported at the same time"
        if refusal:
            self._put(ImportEnded(order.move, 0, refusal))
            return
        self._imports[order.move] = _Import()
        move = order.move
        self._moves.reserve(order.root, order.tokens, lambda found: self._work.put((move, found)))

    def _arrived(self, move: int, part: PagePart) -> None:
        found = self._imports.get(move)
        if found is None:
            self._put(PartTaken(move))
        elif found.reserved is None:
            found.waiting.append(part)
        else:
            self._take(move, found, part)

    def _reserved(self, move: int, reserved: ReservedPages) -> None:
        found = self._imports[move]
        found.reserved = reserved
        waiting, found.waiting = found.waiting, []
        for part in waiting:
            self._take(move, found, part)
        if found.ends:
            self._end(move)

    def _take(self, move: int, found: _Import, part: PagePart) -> None:
        if not found.problem:
            try:
                found.problem = self._write(found, part)
            except Exception as error:  # its process is gone, or what it sent is no part
                found.problem = f"{type(error).__name__} while a part was read"
            if found.problem and part.place is not None:  # perhaps of an earlier process of that number
                self._maps.pop(part.place[:2], None)
        self._put(PartTaken(move))

    def _write(self, found: _Import, part: PagePart) -> str:
        """Write what of a part is missing; the problem, if there is one."""
        memory, reserved = self._moves.memory, found.reserved
        if memory is None or reserved is None:
            return "the engine has stopped"
        data = self._bytes(part, memory)
        skip = reserved.first + found.written - part.first
        if skip < 0:
            return f"the pages before page {part.first} are not here"
        pages = reserved.pages[found.written : found.written + max(0, part.count - skip)]
        # In no step, and in the prefix tree only when they are counted as written.
        if memory.write(pages, data, min(skip, part.count)) != part.checksum:
            return f"the checksum of page {part.first} and those after it is wrong"
        found.written += len(pages)
        full = (
            found.written == len(reserved.pages) and part.first + part.count > reserved.first + found.written
        )
        return "there is no room for more pages" if full else ""

    def _bytes(self, part: PagePart, memory: PageMemory) -> Bytes:
        """ValueError where there are not as many as the pages have."""
        size = part.count * memory.page_bytes
        if part.place is None:
            data = np.frombuffer(part.data, np.uint8)
        else:
            process, file, offset = part.place
            data = self._map(process, file)[offset : offset + size] if offset >= 0 else np.empty(0, np.uint8)
        if part.count < 1 or data.size != size:
            raise ValueError(f"{data.size:,} bytes of {part.count} pages")
        return data

    def _map(self, process: int, file: int) -> Bytes:
        found = self._maps.get((process, file))
        if found is None:
            number = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY)
            try:
                found = np.frombuffer(mmap.mmap(number, 0, prot=mmap.PROT_READ), np.uint8)
            finally:
                os.close(number)
            if len(self._maps) >= MAX_MAPS:
                del self._maps[next(iter(self._maps))]
            self._maps[process, file] = found
        return found

    def _end(self, move: int) -> None:
        found = self._imports.get(move)
        if found is None:
            return  # it was refused
        if found.reserved is None:
            found.ends = True
            return
        del self._imports[move]
        problem = found.problem
        self._moves.commit(
            found.reserved, found.written, lambda tokens: self._put(ImportEnded(move, tokens, problem))
        )
