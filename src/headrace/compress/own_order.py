"""A checkpoint with all inputs in the model's order: GPTQ with `desc_act` stores them in another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.compress.scaled_checkpoint import ScaledCheckpoint
from headrace.weights.checkpoint_reader import CheckpointReader


def in_own_order(source: CheckpointReader) -> CheckpointReader:
    """The checkpoint itself where no matrix has another order. What calibrates or writes weights reads
    them so: only loading takes the stored order and turns the inputs instead."""
    turned = any(source.input_order(name) is not None for name in source.tensors)
    return OwnOrderCheckpoint(source) if turned else source


class OwnOrderCheckpoint(ScaledCheckpoint):
    """A view without factors, which puts columns back."""

    def __init__(self, source: CheckpointReader) -> None:
        super().__init__(source, {})
        self._last: tuple[str, NDArray[np.float32]] | None = None

    def input_order(self, name: str) -> NDArray[np.int32] | None:
        """The model's own."""
        del name

    def float32(self, name: str) -> NDArray[np.float32]:
        """With column i for input i."""
        values, order = self._source.float32(name), self._source.input_order(name)
        if order is None:
            return values
        own = np.empty_like(values)
        own[:, order] = values
        return own

    def row_dtype(self, name: str) -> str:
        """Of what `read_rows` gives."""
        return "F32" if self._source.input_order(name) is not None else self._source.row_dtype(name)

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows of the first dimension."""
        if self._source.input_order(name) is None:
            self._source.read_rows(name, start_row, row_count, out)
            return
        if self._last is None or self._last[0] != name:  # read block by block
            self._last = name, self.float32(name)
        data = self._last[1][start_row : start_row + row_count].reshape(-1).view(np.uint8)
        out.cast("B")[: data.nbytes] = data.data
