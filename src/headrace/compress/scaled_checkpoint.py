"""A checkpoint with scaled inputs: columns of matrices times factors, what makes the inputs through them.

It computes what the checkpoint does; only rounding sees a difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.closeable import Closeable
from headrace.weights.quant_types.block_type import Floats
from headrace.weights.tensor_file import TensorInfo
from headrace.weights.tensor_output import read_floats


class TensorFactors(Struct, frozen=True, eq=False):
    """Of a tensor: numbers of input j times `columns[j]`, those of output i through `rows[i]`, None for
    neither. `plus` is what the model adds to the stored numbers of a norm."""

    columns: Floats | None = None
    rows: Floats | None = None
    plus: float = 0.0

    def of(self, values: Floats, start: int = 0) -> Floats:
        """Rows from `start` on, scaled."""
        scaled: Floats = values + np.float32(self.plus)
        if self.columns is not None:
            scaled = scaled * self.columns
        if self.rows is not None:
            rows = self.rows[start : start + len(values)]
            scaled = scaled / (rows if values.ndim == 1 else rows[:, None])
        return scaled - np.float32(self.plus)


class ScaledCheckpoint(Closeable):
    """A `CheckpointReader` of another, which it does not close."""

    def __init__(self, source: CheckpointReader, scalings: Mapping[str, TensorFactors]) -> None:
        self._source, self._scalings = source, scalings
        self.tensors: Mapping[str, TensorInfo] = source.tensors

    @property
    def config(self) -> dict[str, object]:
        """The source's."""
        return self._source.config

    @property
    def generation_config(self) -> dict[str, object] | None:
        """The source's."""
        return self._source.generation_config

    @property
    def metadata(self) -> Mapping[str, object] | None:
        """The source's."""
        return self._source.metadata

    @property
    def fingerprint(self) -> str:
        """Of the source and of all factors."""
        digest = hashlib.sha256(self._source.fingerprint.encode())
        for name, scaling in sorted(self._scalings.items()):
            digest.update(f"\n{name}".encode())
            for part in (scaling.columns, scaling.rows):
                digest.update(b"-" if part is None else part.astype("<f4").tobytes())
        return digest.hexdigest()

    def info(self, name: str) -> TensorInfo:
        """As the source stores it."""
        return self._source.info(name)

    def input_order(self, name: str) -> NDArray[np.int32] | None:
        """The source's: tensors with an order of their own are not scaled."""
        return self._source.input_order(name)

    def float32(self, name: str) -> NDArray[np.float32]:
        """The scaled tensor."""
        values = self._source.float32(name)
        scaling = self._scalings.get(name)
        return values if scaling is None else np.ascontiguousarray(scaling.of(values), np.float32)

    def row_dtype(self, name: str) -> str:
        """Of what `read_rows` gives."""
        return "F32" if name in self._scalings else self._source.row_dtype(name)

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows of the first dimension."""
        scaling = self._scalings.get(name)
        if scaling is None:
            self._source.read_rows(name, start_row, row_count, out)
            return
        rows = scaling.of(read_floats(self._source, name, start_row, row_count), start_row)
        data = np.ascontiguousarray(rows, np.float32).reshape(-1).view(np.uint8)
        out.cast("B")[: data.nbytes] = data.data

    def close(self) -> None:
        """The source stays open."""
