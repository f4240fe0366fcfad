"""The bytes of KV pages: read to send them to another process, written where they come from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import ProgramError

Bytes = NDArray[np.uint8]


class PageMemory:
    """Keys and values of all layers, whatever their type: a page has some bytes in each of `parts`.

    Several pages are written part after part, and within a part page after page: so one call copies a part of
    all pages. What is read must not change meanwhile (full pages do not), and what is written must be in no
    step: then any thread may call, also while the executor runs. `layout` names all that the meaning of the
    bytes depends on, apart from the weights.
    """

    def __init__(self, parts: Sequence[Bytes], page_count: int, layout: str) -> None:
        self._parts = [part.reshape(page_count, -1) for part in parts if part.size]
        self.layout = layout
        self.page_bytes = sum(part.shape[1] for part in self._parts)
        """Of one page in all layers."""

    def read(self, pages: Sequence[int], out: Bytes) -> int:
        """Copy pages to the beginning of `out`, which has room for them; their checksum."""
        index = np.asarray(pages, np.intp)
        at = found = 0
        for part in self._parts:
            end = at + len(index) * part.shape[1]
            block = out[at:end]
            part.take(index, axis=0, out=block.reshape(len(index), -1), mode="clip")
            found = _chained(found, block)  # while it is in the processor's cache
            at = end
        return found

    def write(self, pages: Sequence[int], data: Bytes, skip: int = 0) -> int:
        """Copy bytes that `read` has given of some pages to these: of the first `skip`, and of those after
        `pages`, nothing. The checksum of all: where it is another one, the pages hold nothing of use."""
        index = np.asarray(pages, np.intp)
        count = data.size // self.page_bytes
        if data.size != count * self.page_bytes or count < skip + len(index):
            raise ProgramError(
                f"{data.size:,} bytes for {len(index)} pages of {self.page_bytes:,}: not these pages"
            )
        at = found = 0
        for part in self._parts:
            end = at + count * part.shape[1]
            block = data[at:end]
            found = _chained(found, block)
            part[index] = block.reshape(count, -1)[skip : skip + len(index)]
            at = end
        return found


@runtime_checkable
class PagedExecutor(Protocol):
    """An executor whose pages can be read and written."""

    @property
    def page_memory(self) -> PageMemory | None:
        """Its pages; None where a sequence has more than these (recurrent states)."""
        ...


def _chained(before: int, block: Bytes) -> int:
    """A checksum over blocks, which are hashed one by one."""
    return (before * 0x9E3779B97F4A7C15 + _native.checksum(block)) & (1 << 64) - 1
