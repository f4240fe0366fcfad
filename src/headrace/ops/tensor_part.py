"""Weights that are not whole checkpoint tensors: slices of one, and arrays computed from several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from headrace.ops.value import Array, Ints


class DerivedTensor(Struct, frozen=True, eq=False):
    """A weight that is computed once, at loading: `compute` of the named float32 tensors, which must have
    these shapes."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    compute: Callable[..., Array]


class TensorSlice(Struct, frozen=True, kw_only=True):
    """A selection of the `of` rows of a stored tensor (for a vector: of its numbers).

    The rows start at `first` and are contiguous, or form blocks of `block` rows with one block every
    `stride` rows. `even_first`: within each block, rows 0, 2, 4, ... come before rows 1, 3, 5, ...
    (converts RoPE of neighboring pairs to RoPE of halves). `transposed`: the matrix is stored as [inputs,
    outputs], and "rows" means its columns; with `matrices` matrices stored one below the other or as
    [matrices, ., .], this applies to each. `inputs`: number of stored inputs if the weight has only the
    first of them.
    `plus` is added to every number of a vector (norms whose checkpoints store the weight minus one).
    """

    of: int
    first: int = 0
    block: int = 0
    stride: int = 0
    even_first: bool = False
    transposed: bool = False
    matrices: int = 1
    inputs: int = 0
    plus: float = 0.0

    def rows(self, start: int, count: int) -> Ints:
        """Stored row indices of the weight's rows `start` .. `start + count`."""
        row = np.arange(start, start + count, dtype=np.int32)
        if not self.block:
            return self.first + row
        place = row % self.block
        if self.even_first:
            place = place % (self.block // 2) * 2 + place // (self.block // 2)
        return self.first + row // self.block * self.stride + place

    def stored_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Shapes that the whole tensor may have, for a slice of shape `shape`."""
        inputs = (self.inputs,) if self.inputs else shape[1:]
        matrix = (self.of // self.matrices, *inputs)
        matrix = matrix[::-1] if self.transposed else matrix
        whole = (self.matrices * matrix[0], *matrix[1:])
        stacked = self.matrices > 1 and (self.transposed or not inputs)
        return (whole, (self.matrices, *matrix)) if stacked else (whole,)

    def __str__(self) -> str:
        """A suffix for the tensor's name that identifies the slice."""
        blocks = f", {self.block} of every {self.stride}" if self.block else ""
        blocks += ", even first" if self.even_first else ""
        blocks += f", {self.matrices} matrices" if self.matrices > 1 else ""
        blocks += f", of {self.inputs} inputs" if self.inputs else ""
        text = f"[from {self.first} of {self.of}{blocks}]" + (".T" if self.transposed else "")
        return f"{text}+{self.plus}" if self.plus else text
