"""Sparse weights of compressed-tensors: the numbers that are not 0, and a bit for each number.

- sparse-bitmask: `compressed` [numbers that are not 0], `bitmask` U8 [n, ceil(k / 8)], the first number in
  the lowest bit, `row_offsets` int64 [n], where each row begins in `compressed`.
- sparse-24-bitmask: `compressed` [n, k / 2], `bitmask`; two of each four numbers.
`shape` is [n, k], or [2, 1]. `sparsity_config` in quantization_config names the format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config
from headrace.weights.config_json import find as find_field
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.quantized_tensor import QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader

BITMASK, BITMASK_24 = "sparse-bitmask", "sparse-24-bitmask"
FORMATS = (BITMASK, BITMASK_24)
VALUES, MASK, OFFSETS, SHAPE = "compressed", "bitmask", "row_offsets", "shape"
GROUP, KEPT = 4, 2
_FLOATS = ("F16", "BF16", "F32")


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `compressed`. UnsupportedModel for other formats, and numbers that are codes."""
    format = find_field(config, "sparsity_config.format")
    if format is None or format == "dense":
        return {}
    if format not in FORMATS:
        raise UnsupportedModel(
            f"the sparse format {str(format)[:60]!r} of compressed-tensors is not supported; known: dense,"
            f" {', '.join(FORMATS)}"
        )
    layers = list(stored.with_suffix(f".{VALUES}"))
    for layer in layers:
        kind = stored.tensors[f"{layer}.{VALUES}"].dtype
        if kind not in _FLOATS:
            raise UnsupportedModel(
                f"tensor '{layer}.{VALUES}' is {kind}: sparse weights are supported as {', '.join(_FLOATS)},"
                " quantized ones only where they are not sparse"
            )
    made = _Bitmask if format == BITMASK else _Bitmask24
    return {f"{layer}.weight": made(stored, layer) for layer in layers}


class _Sparse(QuantizedTensor):
    """Rows of the floats that are stored, with their zeros."""

    def __init__(self, stored: RawTensorReader, layer: str, values_rank: int) -> None:
        self._stored, self._layer = stored, layer
        n, k = _shape(stored, f"{layer}.{SHAPE}")
        stored.check(f"{layer}.{MASK}", ("U8",), (n, -(-k // 8)))
        info = stored.check(f"{layer}.{VALUES}", _FLOATS, (None,) * values_rank)
        super().__init__(stored, f"{layer}.weight", BY_NAME[info.dtype], (n, k), f"{layer}.{VALUES}")

    def _mask(self, start: int, count: int) -> NDArray[np.bool_]:
        packed = self._stored.rows(f"{self._layer}.{MASK}", start, count)
        bits = np.unpackbits(packed, axis=1, count=self.info.shape[1], bitorder="little")
        return bits.astype(np.bool_)

    def _filled(self, mask: NDArray[np.bool_], values: NDArray[Any]) -> Bytes:
        rows = np.zeros(mask.shape, values.dtype)
        rows[mask] = values.reshape(-1)
        return rows.view(np.uint8).reshape(len(mask), -1)


class _Bitmask(_Sparse):
    def __init__(self, stored: RawTensorReader, layer: str) -> None:
        super().__init__(stored, layer, 1)
        n, k = self.info.shape
        stored.check(f"{layer}.{OFFSETS}", ("I64",), (n,))
        self._count = stored.tensors[f"{layer}.{VALUES}"].shape[0]
        if self._count > n * k:
            raise self._damaged(f"{self._count:,} numbers for {n:,} x {k:,} weights")

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        n = self.info.shape[0]
        mask = self._mask(start_row, row_count)
        more = start_row + row_count < n
        offsets = self._stored.rows(f"{self._layer}.{OFFSETS}", start_row, row_count + more)
        ends = offsets if more else np.append(offsets, self._count)
        counts = mask.sum(axis=1, dtype=np.int64)
        # compared before they are subtracted: a difference of hostile numbers may wrap around
        if (offsets < 0).any() or (offsets > self._count).any() or (not start_row and offsets[0] != 0):
            raise self._damaged(f"rows that begin outside of {self._count:,} numbers")
        if (np.diff(ends) != counts).any():
            row = start_row + int(np.flatnonzero(np.diff(ends) != counts)[0])
            raise self._damaged(f"another number of weights in row {row:,} than its bits say")
        values = self._stored.rows(f"{self._layer}.{VALUES}", int(offsets[0]), int(counts.sum()))
        return self._filled(mask, values)

    def _damaged(self, what: str) -> CorruptFile:
        return CorruptFile(f"tensor '{self._layer}.{OFFSETS}' has {what}: fetch the file again")


class _Bitmask24(_Sparse):
    def __init__(self, stored: RawTensorReader, layer: str) -> None:
        super().__init__(stored, layer, 2)
        n, k = self.info.shape
        if k % GROUP:
            raise CorruptFile(f"tensor '{layer}.{SHAPE}' has {k:,} inputs, which have no groups of {GROUP}")
        stored.check(f"{layer}.{VALUES}", _FLOATS, (n, k // GROUP * KEPT))

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        mask = self._mask(start_row, row_count)
        wrong = (mask.reshape(row_count, -1, GROUP).sum(axis=2) != KEPT).any(axis=1)
        if wrong.any():
            raise CorruptFile(
                f"tensor '{self._layer}.{MASK}' has not {KEPT} of each {GROUP} bits in row"
                f" {start_row + int(np.flatnonzero(wrong)[0]):,}: fetch the file again"
            )
        return self._filled(mask, self._stored.rows(f"{self._layer}.{VALUES}", start_row, row_count))


def _shape(stored: RawTensorReader, name: str) -> tuple[int, int]:
    info = stored.tensors.get(name)
    stored.check(name, ("I64", "I32"), (2, 1) if info is not None and len(info.shape) == 2 else (2,))
    n, k = (int(size) for size in stored.whole(name).reshape(-1))
    if n < 1 or k < 1:
        raise CorruptFile(f"tensor {name!r} is [{n}, {k}], sizes above 0 expected: fetch the file again")
    return n, k
