"""What a worker does with the server's orders to move KV pages."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.engine import Engine
from headrace.engine.page_moves import HotText
from headrace.workers.page_exports import PageExports
from headrace.workers.page_imports import PageImports
from headrace.workers.protocol import (
    BeginImport,
    EndImport,
    ExportPages,
    FinishExport,
    HotTexts,
    ImportPart,
    ListHotTexts,
    PageOrder,
    PageReport,
    PartTaken,
    StopExport,
)


def page_class(engine: Engine, weight_format: str) -> str:
    """What the bytes of an engine's pages depend on apart from the weights; "" where they cannot be moved."""
    memory = engine.page_moves.memory
    return "" if memory is None else f"{weight_format} {memory.layout}"


class PageMover:
    """Of one engine; `take` for the reader's thread."""

    def __init__(self, engine: Engine, weight_format: str, put: Callable[[PageReport], None]) -> None:
        self._moves, self._put = engine.page_moves, put
        self._exports = PageExports(self._moves, put)
        self._imports = PageImports(self._moves, page_class(engine, weight_format), put)

    def take(self, order: PageOrder) -> None:
        """Begin what is ordered."""
        match order:
            case ExportPages():
                self._exports.begin(order)
            case FinishExport(move):
                self._exports.finish(move)
            case PartTaken(move):
                self._exports.taken(move)
            case StopExport(move):
                self._exports.stop(move)
            case ListHotTexts(move, max_bytes):
                self._list(move, max_bytes)
            case BeginImport() | ImportPart() | EndImport():
                self._imports.take(order)

    def close(self) -> None:
        """End its threads."""
        self._exports.close()
        self._imports.close()

    def _list(self, move: int, max_bytes: int) -> None:
        memory = self._moves.memory
        if memory is None:
            self._put(HotTexts(move, []))
            return

        def tell(texts: list[HotText]) -> None:
            found = [((root[0], str(root[1]), root[2]), shared, tokens) for root, shared, tokens in texts]
            self._put(HotTexts(move, found))

        self._moves.hottest(max_bytes // memory.page_bytes, tell)
