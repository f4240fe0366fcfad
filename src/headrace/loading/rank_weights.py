"""The weights of one rank: of each split tensor only its rows are read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from headrace.ops.value import Array, Ints
from headrace.program.shares import RowRange
from headrace.weights.checkpoint_reader import TensorReader
from headrace.weights.tensor_file import TensorInfo


class RankWeights:
    """A reader of tensors, some of which have only some of their rows here."""

    def __init__(self, whole: TensorReader, rows: Mapping[str, RowRange], rank: int, ranks: int) -> None:
        self._whole, self._rows = whole, rows
        self._label = f"rank {rank} of {ranks}"

    @property
    def fingerprint(self) -> str:
        """Differs from rank to rank, since their tensors have the same names."""
        return f"{self._whole.fingerprint} {self._label}"

    def info(self, name: str) -> TensorInfo:
        """As if the rows were stored alone."""
        info, rows = self._whole.info(name), self._rows.get(name)
        if rows is None:
            return info
        nbytes = info.nbytes * rows.count // rows.whole
        return replace(info, shape=(rows.count, *info.shape[1:]), nbytes=nbytes)

    def input_order(self, name: str) -> Ints | None:
        """See TensorReader."""
        return self._whole.input_order(name)

    def float32(self, name: str) -> Array:
        """See TensorReader."""
        rows = self._rows.get(name)
        whole = self._whole.float32(name)
        return whole if rows is None else whole[rows.first : rows.first + rows.count].copy()

    def row_dtype(self, name: str) -> str:
        """See TensorReader."""
        return self._whole.row_dtype(name)

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """See TensorReader."""
        rows = self._rows.get(name)
        self._whole.read_rows(name, start_row + (0 if rows is None else rows.first), row_count, out)
