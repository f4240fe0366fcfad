"""Headrace's own folders: what int4 and int8 are on loading, kept in a file.

`quantization_config` is {"quant_method": "headrace", "format": "rotated"}. A layer has `weight_codes`, U8
[n, k / 2] or I8 [n, k], and `weight_scale`, F32 [n]; with U8 also `weight_groups`, U8 [n, k / 16], a
multiplier and an offset for every 32 inputs. quant_types/rotated.py says what they stand for; in a row, the
nibbles of 32 inputs take 16 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config
from headrace.weights.config_json import find as find_field
from headrace.weights.formats.hadamard import GROUP, check_integer_shape, rotation_block
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.quantized_tensor import QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader

METHOD, FORMAT = "headrace", "rotated"
CODES, GROUPS, SCALE = "weight_codes", "weight_groups", "weight_scale"
_MOST_MULTIPLIER, _MOST = 17, 255


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `weight_codes`."""
    format = find_field(config, "format")
    if format != FORMAT:
        raise UnsupportedModel(
            f"config.json has the format {str(format)[:60]!r} of quant_method {METHOD!r}, {FORMAT!r} is"
            " supported: a newer Headrace has written it"
        )
    return {f"{layer}.weight": Rotated(stored, layer) for layer in stored.with_suffix(f".{CODES}")}


class Rotated(QuantizedTensor):
    """Rows of R4 or R8."""

    def __init__(self, stored: RawTensorReader, layer: str) -> None:
        codes = f"{layer}.{CODES}"
        n, width = stored.check(codes, ("U8", "I8"), (None, None)).shape
        self._has_groups = stored.tensors[codes].dtype == "U8"
        k = 2 * width if self._has_groups else width
        if k % GROUP:
            raise CorruptFile(
                f"tensor {codes!r} has {k:,} inputs, a multiple of {GROUP} expected: fetch the file again"
            )
        if self._has_groups:
            stored.check(f"{layer}.{GROUPS}", ("U8",), (n, 2 * (k // GROUP)))
        stored.check(f"{layer}.{SCALE}", ("F32",), (n,))
        try:
            check_integer_shape(n, k)
        except ValueError as error:
            raise CorruptFile(f"tensor {codes!r}: {error}") from None
        kind = BY_NAME[f"R{4 if self._has_groups else 8}_{rotation_block(k)}"]
        super().__init__(stored, f"{layer}.weight", kind, (n, k), codes)
        self._stored, self._layer = stored, layer

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        scale = self._rows(SCALE, start_row, row_count)
        scales = self._stored.finite(f"{self._layer}.{SCALE}", scale).astype("<f4")
        count = self.info.shape[1] // self.type.block_size
        of_rows = np.repeat(scales.reshape(-1, 1, 1), count, axis=1).view(np.uint8)
        codes = self._rows(CODES, start_row, row_count).view(np.uint8)
        if self._has_groups:
            groups = self._checked_groups(start_row, row_count)
            codes = np.concatenate([groups, codes.reshape(*groups.shape[:2], -1)], axis=2)
        return np.concatenate([of_rows, codes.reshape(row_count, count, -1)], axis=2).reshape(row_count, -1)

    def _checked_groups(self, start_row: int, row_count: int) -> Bytes:
        """Multipliers and offsets [rows, groups, 2], whose products with codes fit a byte."""
        groups: Bytes = self._rows(GROUPS, start_row, row_count).reshape(row_count, -1, 2)
        wide = groups.astype(np.int32)
        if (wide[..., 0] > _MOST_MULTIPLIER).any() or (15 * wide[..., 0] + wide[..., 1] > _MOST).any():
            raise CorruptFile(
                f"tensor '{self._layer}.{GROUPS}' has multipliers and offsets that no int4 weight has:"
                " fetch the file again"
            )
        return groups

    def _rows(self, field: str, start: int, count: int) -> NDArray[Any]:
        return self._stored.rows(f"{self._layer}.{field}", start, count)
