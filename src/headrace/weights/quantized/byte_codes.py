"""Weights of one byte with float scales: int8, and FP8 E4M3 as one, per output, in groups or in blocks."""

from __future__ import annotations

from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.block_encoding import byte_blocks
from headrace.weights.quantized.quantized_tensor import QuantizedTensor, read_grid
from headrace.weights.quantized.raw_tensors import RawTensorReader

TYPES = {"I8": "S8_G32", "F8_E4M3": "E4M3_G32"}


class ByteCodes(QuantizedTensor):
    """`layer.weight` [n, k] in I8 or F8_E4M3, times its scales."""

    def __init__(
        self, stored: RawTensorReader, layer: str, scale: str, *, block: tuple[int, int] | None = None
    ) -> None:
        name = f"{layer}.weight"
        info = stored.check(name, tuple(TYPES), (None, None))
        n, k = info.shape
        super().__init__(stored, name, BY_NAME[TYPES[info.dtype]], (n, k), name)
        self._stored = stored
        self._scales = read_grid(stored, f"{layer}.{scale}", n, k, 32, block)

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        codes = self._stored.rows(self.info.name, start_row, row_count)
        return byte_blocks(codes, self._scales.of_blocks(start_row, row_count, self.info.shape[1], 32))
