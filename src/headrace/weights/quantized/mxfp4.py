"""MXFP4 as gpt-oss stores its experts: codes [experts, rows, k / 32, 16] and an exponent for each block.

`x_blocks` and `x_scales` become one matrix `x` of [experts * rows, k]. Two codes to a byte, the first one
low; the exponent 255 is a NaN (OCP Microscaling Formats 1.0).
"""

from __future__ import annotations

import numpy as np

from headrace.errors import CorruptFile
from headrace.weights.config_json import Config
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.block_encoding import mxfp4_blocks, nibbles_of_bytes
from headrace.weights.quantized.quantized_tensor import QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every pair of blocks and scales."""
    return {name: _Experts(stored, name) for name in stored.with_suffix("_blocks")}


class _Experts(QuantizedTensor):
    def __init__(self, stored: RawTensorReader, name: str) -> None:
        self._stored, self._name = stored, name
        experts, rows, groups, _ = stored.check(f"{name}_blocks", ("U8",), (None, None, None, 16)).shape
        stored.check(f"{name}_scales", ("U8",), (experts, rows, groups))
        super().__init__(stored, name, BY_NAME["MXFP4"], (experts * rows, groups * 32), f"{name}_blocks")
        self._rows = rows

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        exponent = self._matrix_rows("scales", start_row, row_count)
        codes = nibbles_of_bytes(self._matrix_rows("blocks", start_row, row_count))
        return mxfp4_blocks(codes.reshape(row_count, -1), checked(f"{self._name}_scales", exponent))

    def _matrix_rows(self, field: str, start: int, count: int) -> Bytes:
        """Rows of all experts, one after the other; whole experts are read."""
        name = f"{self._name}_{field}"
        first, end = start // self._rows, -(-(start + count) // self._rows)
        experts = self._stored.rows(name, first, end - first)
        rows = experts.reshape(-1, *experts.shape[2:])
        return rows[start - first * self._rows :][:count]


def checked(name: str, exponent: Bytes) -> Bytes:
    """The exponents, none of which may be the NaN."""
    if (exponent == 255).any():
        raise CorruptFile(
            f"tensor {name!r} holds {np.count_nonzero(exponent == 255):,} scales that are NaN: fetch it again"
        )
    return exponent
