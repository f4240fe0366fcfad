"""Orders of rows in GGUF files that differ from a checkpoint, and reading rows apart."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np
from numpy.typing import NDArray

_MAX_SKIPPED = 8  # rows that are read for nothing rather than with another call


class RowOrder(Enum):
    """How a file orders the rows of projections to heads of `head_dim` rows each.

    PAIRS: row j of the first half of a head lies at 2j, of the second half at 2j + 1, as for a rotation of
    neighbors. THREE_STACKS: all heads' queries, then all keys, then all values, where a checkpoint has
    query, key and value of one head together.
    """

    PAIRS = 1
    THREE_STACKS = 2

    def stored(self, rows: NDArray[np.int64], count: int, head_dim: int) -> NDArray[np.int64]:
        """Where rows of a checkpoint's tensor of `count` rows lie in the file."""
        if self is RowOrder.PAIRS:
            head, within = np.divmod(rows, head_dim)
            half = head_dim // 2
            return head * head_dim + within % half * 2 + within // half
        head, within = np.divmod(rows, 3 * head_dim)
        return within // head_dim * (count // 3) + head * head_dim + within % head_dim

    def original(self, rows: NDArray[np.int64], count: int, head_dim: int) -> NDArray[np.int64]:
        """The reverse: where rows of the file lie in the checkpoint."""
        if self is RowOrder.PAIRS:
            head, within = np.divmod(rows, head_dim)
            return head * head_dim + within % 2 * (head_dim // 2) + within // 2
        stack, rest = np.divmod(rows, count // 3)
        head, within = np.divmod(rest, head_dim)
        return (head * 3 + stack) * head_dim + within

    def divides(self, count: int, head_dim: int) -> bool:
        """Whether `count` rows are whole heads, and a head whole pairs."""
        if self is RowOrder.PAIRS:
            return head_dim > 0 and head_dim % 2 == 0 and count % head_dim == 0
        return head_dim > 0 and count % (3 * head_dim) == 0


def gather_rows(read: Callable[[int, int], NDArray[np.uint8]], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Rows in the given order: [len(rows), bytes of a row]; `read(start, count)` gives consecutive ones."""
    order = np.argsort(rows)
    runs = np.split(order, np.flatnonzero(np.diff(rows[order]) > _MAX_SKIPPED) + 1)
    found: NDArray[np.uint8] | None = None
    for run in runs:
        first, last = int(rows[run[0]]), int(rows[run[-1]])
        block = read(first, last - first + 1)
        if found is None:
            found = np.empty((len(rows), block.shape[1]), np.uint8)
        found[run] = block[rows[run] - first]
    assert found is not None, "no rows are asked for"
    return found
