"""GPTQ, 4 and 8 bits (Frantar et al. 2022, https://arxiv.org/abs/2210.17323), as AutoGPTQ stores it.

`qweight` int32 [k * bits / 32, n] packed along the inputs, `qzeros` int32 [groups, n * bits / 32] along the
outputs, `scales` [groups, n], `g_idx` int32 [k], the group of each input: w = scale * (code - zero). The
checkpoint format "gptq" stores zeros less one, "gptq_v2" as they are.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config, boolean, integer, text
from headrace.weights.config_json import find as find_field
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.block_encoding import byte_blocks, fields_of_words, u4_blocks
from headrace.weights.quantized.quantized_tensor import InputGroups, QuantizedTensor, even_groups, read_groups
from headrace.weights.quantized.raw_tensors import RawTensorReader

_TYPES = {4: "U4_G32", 8: "S8_G32"}
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_SCALES = ("F16", "BF16", "F32")


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `qweight`. UnsupportedModel for other widths and formats."""
    bits, format = integer(config, "bits"), text(config, "checkpoint_format", "gptq")
    if bits not in _TYPES:
        nearest = min(_TYPES, key=lambda known: abs(known - bits))
        raise UnsupportedModel(f"GPTQ with {bits} bits is not supported; the nearest that is: {nearest} bits")
    if format not in _ZERO_OFFSETS:
        known = " and ".join(map(repr, _ZERO_OFFSETS))
        raise UnsupportedModel(f"the GPTQ format {format[:40]!r} is not supported; known: {known}")
    dynamic = find_field(config, "dynamic")
    if isinstance(dynamic, dict) and any(
        not key.startswith("-:") for key in cast("dict[str, object]", dynamic)
    ):
        raise UnsupportedModel(
            "this GPTQ checkpoint varies its bits or groups from layer to layer ('dynamic'), which is not "
            "supported; the nearest that is: one setting, with layers left out"
        )
    size = integer(config, "group_size", 128, minimum=-1)
    indexed = boolean(config, "desc_act", False)
    return {
        f"{layer}.weight": _Gptq(stored, layer, bits, size, indexed, _ZERO_OFFSETS[format])
        for layer in stored.with_suffix(".qweight")
    }


class _Gptq(QuantizedTensor):
    def __init__(
        self, stored: RawTensorReader, layer: str, bits: int, size: int, indexed: bool, zero_offset: int
    ) -> None:
        self._stored, self._layer, self._bits, self._zero_offset = stored, layer, bits, zero_offset
        words, n = stored.check(f"{layer}.qweight", ("I32",), (None, None)).shape
        k = words * 32 // bits
        super().__init__(stored, f"{layer}.weight", BY_NAME[_TYPES[bits]], (n, k), f"{layer}.qweight")
        size = size if 0 < size < k else k
        groups = -(-k // size)
        stored.check(f"{layer}.scales", _SCALES, (groups, n))
        stored.check(f"{layer}.qzeros", ("I32",), (groups, -(-n * bits // 32)))
        self._groups = self._input_groups(k, size, groups, indexed)
        self.order = self._groups.order

    def _input_groups(self, k: int, size: int, groups: int, indexed: bool) -> InputGroups:
        index = f"{self._layer}.g_idx"
        if index in self._stored:
            return read_groups(self._stored, index, k, groups)
        if indexed:
            raise CorruptFile(
                f"the checkpoint has no tensor {index!r}, which desc_act asks for: fetch it again"
            )
        return even_groups(self.info.name, k, size)

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        stored, name = self._stored, f"{self._layer}.scales"
        scale = stored.finite(name, stored.columns(name, start_row, row_count)).T
        zero = self._zeros(start_row, row_count)
        words = stored.columns(f"{self._layer}.qweight", start_row, row_count)
        codes = fields_of_words(np.ascontiguousarray(words.T), self._bits)
        if self.order is not None:
            codes = codes[:, self.order]
        of_block = self._groups.of_block
        if self._bits == 4:
            return u4_blocks(codes, scale[:, of_block], zero[:, of_block])
        self._check_middle(zero)
        return byte_blocks(codes ^ np.uint8(128), scale[:, of_block])

    def _zeros(self, start: int, count: int) -> Bytes:
        """[count outputs, groups]; one that was 0 is stored as the largest code."""
        per_word = 32 // self._bits
        first, end = start // per_word, -(-(start + count) // per_word)
        words = self._stored.columns(f"{self._layer}.qzeros", first, end - first)
        zeros = fields_of_words(words, self._bits)[:, start - first * per_word :][:, :count].T
        return (zeros + np.uint8(self._zero_offset)) & np.uint8((1 << self._bits) - 1)

    def _check_middle(self, zero: Bytes) -> None:
        other = zero[zero != 128]
        if other.size:
            raise UnsupportedModel(
                f"tensor {self._layer}.qzeros has the zero {other[0]}; of GPTQ with 8 bits only the "
                "symmetric form (zeros of 128) is supported, with 4 bits any"
            )
