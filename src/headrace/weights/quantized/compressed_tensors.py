"""compressed-tensors (vLLM, llm-compressor): what a layer holds says how it is stored.

- pack-quantized: `weight_packed` int32 [n, k * bits / 32], codes raised by half their range; `weight_shape`
  [n, k]; `weight_zero_point` int32 [n * bits / 32, groups] packed along the outputs, raised alike;
  `weight_g_idx`, the group of each input.
- int-quantized, float-quantized, naive-quantized: `weight` in I8 or F8_E4M3 [n, k].
- nvfp4-pack-quantized, mxfp4-pack-quantized: `weight_packed` U8 [n, k / 2].
- sparse-bitmask, sparse-24-bitmask: sparse.py.
Scales are `weight_scale`: one, [n, 1], [n, groups], or blocks.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config, integers
from headrace.weights.config_json import find as find_field
from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized import sparse
from headrace.weights.quantized.block_encoding import (
    byte_blocks,
    fields_of_words,
    mxfp4_blocks,
    nibbles_of_bytes,
    u4_blocks,
)
from headrace.weights.quantized.byte_codes import TYPES, ByteCodes
from headrace.weights.quantized.mxfp4 import checked
from headrace.weights.quantized.nvfp4 import Nvfp4
from headrace.weights.quantized.quantized_tensor import InputGroups, QuantizedTensor, even_groups, read_groups
from headrace.weights.quantized.raw_tensors import FLOATS, RawTensorReader

_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"),
)
_PACKED = {4: "U4_G32", 8: "S8_G32"}


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `weight_packed`, or a `weight` of one byte with a `weight_scale`."""
    _check_format(find_field(config, "format"))
    _refuse_transforms(config)
    block: tuple[int, int] | None = None
    groups = find_field(config, "config_groups")
    for group in cast("dict[str, object]", groups).values() if isinstance(groups, dict) else ():
        if isinstance(group, dict):
            settings = cast(Config, group)
            _check_format(settings.get("format"))
            block = _block(settings) or block
    found = sparse.find(stored, config) | {
        f"{layer}.weight": _packed(stored, layer) for layer in stored.with_suffix(".weight_packed")
    }
    for layer in stored.with_suffix(".weight"):
        if stored.tensors[f"{layer}.weight"].dtype in TYPES:
            _refuse_zeros(stored, f"{layer}.weight_zero_point")
            found[f"{layer}.weight"] = ByteCodes(stored, layer, "weight_scale", block=block)
    return found


def _refuse_transforms(config: Config) -> None:
    """Rotations of weights (QuIP, SpinQuant) that are undone on activations while the model runs."""
    transforms = find_field(config, "transform_config")
    if (
        transforms is not None
        and transforms != {}
        and find_field(config, "transform_config.config_groups") != {}
    ):
        raise UnsupportedModel(
            "config.json has a transform_config: the weights are rotated (QuIP, SpinQuant) and activations"
            " would have to be, which is not supported: use a checkpoint quantized without transforms"
        )


def _check_format(format: object) -> None:
    if format is not None and format not in _FORMATS:
        raise UnsupportedModel(
            f"the compressed-tensors format {str(format)[:60]!r} is not supported; the nearest that is: "
            f"'pack-quantized'; all: {', '.join(_FORMATS)}"
        )


def _block(group: Config) -> tuple[int, int] | None:
    size = integers(group, "weights.block_structure")
    return (size[0], size[1]) if size is not None and len(size) == 2 and min(size) > 0 else None


def _refuse_zeros(stored: RawTensorReader, name: str) -> None:
    """Symmetric layers may store zeros of 0."""
    if name in stored and (stored.whole(name) != 0).any():
        raise UnsupportedModel(
            f"tensor {name!r} is not all 0: int8 weights are supported in the symmetric form only, 4-bit "
            "ones (pack-quantized) in both"
        )


def _packed(stored: RawTensorReader, layer: str) -> QuantizedTensor:
    if f"{layer}.weight_global_scale" in stored:
        return Nvfp4(stored, layer, "weight_packed", "weight_global_scale", divisor=True)
    if stored.tensors[f"{layer}.weight_packed"].dtype == "U8":
        return _Mxfp4(stored, layer)
    return _PackedInts(stored, layer)


class _Mxfp4(QuantizedTensor):
    def __init__(self, stored: RawTensorReader, layer: str) -> None:
        self._stored, self._layer = stored, layer
        n, pairs = stored.check(f"{layer}.weight_packed", ("U8",), (None, None)).shape
        super().__init__(
            stored, f"{layer}.weight", BY_NAME["MXFP4"], (n, pairs * 2), f"{layer}.weight_packed"
        )
        stored.check(f"{layer}.weight_scale", ("U8", "F8_E8M0"), (n, pairs // 16))

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        codes = nibbles_of_bytes(self._stored.rows(f"{self._layer}.weight_packed", start_row, row_count))
        name = f"{self._layer}.weight_scale"
        return mxfp4_blocks(codes, checked(name, self._stored.rows(name, start_row, row_count)))


class _PackedInts(QuantizedTensor):
    def __init__(self, stored: RawTensorReader, layer: str) -> None:
        self._stored, self._layer = stored, layer
        n, words = stored.check(f"{layer}.weight_packed", ("I32",), (None, None)).shape
        stored.check(f"{layer}.weight_shape", ("I64", "I32"), (2,))
        shape = tuple(int(size) for size in stored.whole(f"{layer}.weight_shape"))
        k = shape[1]
        bits = next(
            (bits for bits in _PACKED if shape[0] == n and k > 0 and -(-k * bits // 32) == words), None
        )
        if bits is None:
            raise CorruptFile(
                f"tensor {layer}.weight_packed is [{n}, {words}], weight_shape says {list(shape)}: with 4 "
                f"bits [{n}, {words * 8}], with 8 bits [{n}, {words * 4}] expected; supported are these two"
            )
        super().__init__(stored, f"{layer}.weight", BY_NAME[_PACKED[bits]], (n, k), f"{layer}.weight_packed")
        self._bits = bits
        self._count = stored.check(f"{layer}.weight_scale", FLOATS[:3], (n, None)).shape[1]
        self._groups = self._input_groups(k)
        self.order = self._groups.order
        self._check_zeros(n)

    def _input_groups(self, k: int) -> InputGroups:
        if k % self._count:
            raise CorruptFile(
                f"tensor {self._layer}.weight_scale has {self._count} groups for {k} inputs: no whole groups"
            )
        index = f"{self._layer}.weight_g_idx"
        if index in self._stored and (self._stored.whole(index) >= 0).any():  # all -1 where it is not used
            return read_groups(self._stored, index, k, self._count)
        return even_groups(self.info.name, k, k // self._count)

    def _check_zeros(self, n: int) -> None:
        name = f"{self._layer}.weight_zero_point"
        self._has_zeros = name in self._stored
        if self._has_zeros:
            self._stored.check(name, ("I32",), (-(-n * self._bits // 32), self._count))
        if self._has_zeros and self._bits == 8:
            raise UnsupportedModel(
                f"tensor {name!r}: packed 8-bit weights are supported in the symmetric form only, 4-bit "
                "ones in both"
            )

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        stored, name = self._stored, f"{self._layer}.weight_scale"
        scale = stored.finite(name, stored.rows(name, start_row, row_count))[:, self._groups.of_block]
        words = stored.rows(f"{self._layer}.weight_packed", start_row, row_count)
        codes = fields_of_words(words, self._bits)[:, : self.info.shape[1]]
        if self.order is not None:
            codes = codes[:, self.order]
        if self._bits == 8:
            return byte_blocks(codes ^ np.uint8(128), scale)
        return u4_blocks(codes, scale, self._zeros(start_row, row_count)[:, self._groups.of_block])

    def _zeros(self, start: int, count: int) -> Bytes:
        """[count outputs, groups]."""
        if not self._has_zeros:
            return np.full((count, self._count), 8, np.uint8)
        first, end = start // 8, -(-(start + count) // 8)
        words = self._stored.rows(f"{self._layer}.weight_zero_point", first, end - first)
        zeros = fields_of_words(np.ascontiguousarray(words.T), 4)
        return zeros[:, start - first * 8 :][:, :count].T
