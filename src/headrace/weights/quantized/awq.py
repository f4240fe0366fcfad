"""AWQ, 4 bits, as AutoAWQ's "gemm" version stores it (Lin et al. 2023, https://arxiv.org/abs/2306.00978).

`qweight` int32 [k, n / 8], `qzeros` int32 [groups, n / 8], `scales` [groups, n]: w = scale * (code - zero).
The eight nibbles of a word, lowest first, are the outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, integer, text
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.block_encoding import fields_of_words, u4_blocks
from headrace.weights.quantized.quantized_tensor import QuantizedTensor, even_groups
from headrace.weights.quantized.raw_tensors import RawTensorReader

_PLACE_OF_OUTPUT = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_SCALES = ("F16", "BF16", "F32")


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `qweight`. UnsupportedModel for other widths and versions."""
    bits, version = integer(config, "bits", 4), text(config, "version", "gemm")
    if bits != 4:
        raise UnsupportedModel(f"AWQ with {bits} bits is not supported; the nearest that is: 4 bits")
    if version.lower() != "gemm":
        raise UnsupportedModel(f"AWQ of the version {version[:40]!r} is not supported; the nearest is 'gemm'")
    group = integer(config, "group_size", 128, minimum=-1)
    return {f"{layer}.weight": _Awq(stored, layer, group) for layer in stored.with_suffix(".qweight")}


class _Awq(QuantizedTensor):
    def __init__(self, stored: RawTensorReader, layer: str, group: int) -> None:
        self._stored, self._layer = stored, layer
        k, words = stored.check(f"{layer}.qweight", ("I32",), (None, None)).shape
        super().__init__(stored, f"{layer}.weight", BY_NAME["U4_G32"], (words * 8, k), f"{layer}.qweight")
        size = group if group > 0 else k
        self._groups = even_groups(f"{layer}.weight", k, size)
        stored.check(f"{layer}.qzeros", ("I32",), (-(-k // size), words))
        stored.check(f"{layer}.scales", _SCALES, (-(-k // size), words * 8))

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        stored, name = self._stored, f"{self._layer}.scales"
        scale = stored.finite(name, stored.columns(name, start_row, row_count)).T
        zero = self._nibbles("qzeros", start_row, row_count)
        of_block = self._groups.of_block
        codes = self._nibbles("qweight", start_row, row_count)
        return u4_blocks(codes, scale[:, of_block], zero[:, of_block])

    def _nibbles(self, field: str, start: int, count: int) -> Bytes:
        """[count outputs, inputs or groups]."""
        first, end = start // 8, -(-(start + count) // 8)
        words = self._stored.columns(f"{self._layer}.{field}", first, end - first)
        codes = fields_of_words(words, 4).reshape(len(words), -1, 8)[:, :, _PLACE_OF_OUTPUT]
        return codes.reshape(len(words), -1)[:, start - first * 8 :][:, :count].T
