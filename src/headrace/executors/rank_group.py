"""The ranks of a model and the memory that they share: what native code needs to know of them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.executors.lowering import Lowering
from headrace.program.plan import ArenaPlan
from headrace.program.shares import RowRange

HEADER_BYTES = 4096
"""At the beginning of the memory (Group::kHeaderBytes in native/executor/group.hpp)."""

GroupRow = tuple[
    NDArray[np.uint8], int, int, int, list[int], list[tuple[int, int, int, int]], list[tuple[int, int, int]]
]


class RankGroup(Struct, frozen=True, eq=False):
    """One rank of several, their memory, and the rows that the rank has of each split weight."""

    rank: int
    ranks: int
    memory: NDArray[np.uint8]
    rows: Mapping[str, RowRange]

    def row(self, lowering: Lowering, shared: ArenaPlan) -> GroupRow:
        """For native code, which checks it."""
        values = [index for index, value in enumerate(lowering.values) if value in shared.placements]
        tables = {instruction[3][0] for instruction in lowering.instructions if instruction[0] == "embed"}
        shares = [
            (index, self.rows[name].first, self.rows[name].whole)
            for index, name in enumerate(lowering.matrices)
            if index in tables and name in self.rows
        ]
        return self.memory, shared.nbytes, self.rank, self.ranks, values, lowering.exchanges, shares


def new_group_memory(nbytes: int) -> int:
    """A file in memory for a group, of zeros, with so many bytes behind its header: for what is shared of
    values and, behind them, for inputs of products."""
    if not hasattr(os, "memfd_create"):
        raise UnsupportedModel(
            "tensor_parallel_size needs memory that processes share, as Linux has it: leave it out, or use"
            " --pp",
            param="tensor_parallel_size",
        )
    file = os.memfd_create("headrace-ranks")
    os.ftruncate(file, HEADER_BYTES + nbytes)
    return file


def group_memory(file: int) -> NDArray[np.uint8]:
    """The memory of a file, which this process maps."""
    return np.frombuffer(mmap.mmap(file, 0), np.uint8)


def lose_rank(memory: NDArray[np.uint8]) -> None:
    """Say to all ranks that one has ended: none waits for it any longer."""
    memory[:4].view(np.uint32)[0] = 1
