"""NVFP4: E2M1 codes with an E4M3 scale per 16 inputs and one float for the whole tensor.

modelopt stores `weight` and `weight_scale_2`, a factor; compressed-tensors `weight_packed` and
`weight_global_scale`, a divisor. Two codes to a byte, the first one low.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import CorruptFile
from headrace.weights.config_json import Config
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized import fp8
from headrace.weights.quantized.block_encoding import e2m1_blocks, nibbles_of_bytes
from headrace.weights.quantized.quantized_tensor import QuantizedTensor, read_grid
from headrace.weights.quantized.raw_tensors import RawTensorReader


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """modelopt: NVFP4 layers have a `weight_scale_2`, FP8 layers are as in other checkpoints."""
    found = fp8.find(stored, config)
    for layer in stored.with_suffix(".weight_scale_2"):
        found[f"{layer}.weight"] = Nvfp4(stored, layer, "weight", "weight_scale_2", divisor=False)
    return found


class Nvfp4(QuantizedTensor):
    """`codes` and `whole` are the fields that hold the codes, and the scale of the whole tensor."""

    def __init__(self, stored: RawTensorReader, layer: str, codes: str, whole: str, *, divisor: bool) -> None:
        self._stored, self._codes = stored, f"{layer}.{codes}"
        n, pairs = stored.check(self._codes, ("U8",), (None, None)).shape
        super().__init__(stored, f"{layer}.weight", BY_NAME["E2M1_G16"], (n, pairs * 2), self._codes)
        stored.check(f"{layer}.weight_scale", ("F8_E4M3",), (n, pairs // 8))
        self._scales = read_grid(stored, f"{layer}.weight_scale", n, pairs * 2, 16)
        self._whole = _one_number(stored, f"{layer}.{whole}")
        self._divisor = divisor

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        codes = nibbles_of_bytes(self._stored.rows(self._codes, start_row, row_count))
        scale = self._scales.of_blocks(start_row, row_count, self.info.shape[1], 16)
        return e2m1_blocks(codes, scale / self._whole if self._divisor else scale * self._whole)


def _one_number(stored: RawTensorReader, name: str) -> np.float32:
    stored.check(name, ("F32",), stored.tensors[name].shape if name in stored else (1,))
    values = stored.finite(name, stored.whole(name)).reshape(-1)
    if values.size != 1 or values[0] <= 0:
        raise CorruptFile(
            f"tensor {name!r} has {values.size:,} numbers from {values.min(initial=0)}, one above 0 expected"
        )
    return np.float32(values[0])
