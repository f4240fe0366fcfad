"""Which rows of a checkpoint tensor a weight is, where a checkpoint stores several weights as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.ops.value import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """Some of the `of` rows of a stored tensor, which for a vector are its numbers.

    They start at row `first` and follow each other, or come in blocks of `block` rows, one every `stride`.
    `transposed`: a matrix is stored as [inputs, outputs], and its columns are what is meant by rows.
    `plus` is added to every number of a vector (norms whose checkpoints store the weight less one).
    """

    of: int
    first: int = 0
    block: int = 0
    stride: int = 0
    transposed: bool = False
    plus: float = 0.0

    def rows(self, start: int, count: int) -> Ints:
        """The stored rows that the weight's rows from `start` on are."""
        row = np.arange(start, start + count, dtype=np.int32)
        return self.first + (row // self.block * self.stride + row % self.block if self.block else row)

    def __str__(self) -> str:
        """A suffix for the tensor's name, different for different parts."""
        blocks = f", {self.block} of every {self.stride}" if self.block else ""
        text = f"[from {self.first} of {self.of}{blocks}]" + (".T" if self.transposed else "")
        return f"{text}+{self.plus}" if self.plus else text
