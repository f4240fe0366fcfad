"""A checkpoint's tensors as those of a safetensors folder: plain floats, or packed integers.

int4 is Headrace's own, which rotated_rows.py writes. Layout of the others:
https://github.com/vllm-project/compressed-tensors (`pack-quantized`: 32 / bits codes in an int32, the
first in its lowest bits, each plus half its range).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.formats.hadamard import MAX_INPUTS
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.quantize import quantize, symmetric_bf16
from headrace.weights.safetensors.reader import READABLE
from headrace.weights.safetensors.rotated_rows import QUANTIZATION_CONFIG, RotatedRows
from headrace.weights.safetensors.sparse_rows import SparseRows, sparsity_config
from headrace.weights.tensor_output import Converter, TensorOutput, float_rows
from headrace.weights.tensor_roles import class_of

INTEGERS = ("int8", "int4", "w4a16", "w8a16", "w8a8")
"""int4 is what loading makes of `--quantization int4`; int8 is w8a16; w8a8 also says that inputs are rounded
to 8 bits, token by token."""
TYPES = ("f32", "f16", "bf16", *INTEGERS)
_ROUNDED_INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
_QUANTIZED = ("attention", "mlp", "experts")


class SafetensorsExport(Struct, frozen=True, kw_only=True):
    """How a checkpoint becomes a folder. With int8 a row has one scale, with w4a16 a group of 128 inputs (32
    where some row is no multiple of 128, or the matrices are `calibrated`); all that is no projection of a
    block stays bf16, but with int4 `tables` have formats by their names. `ready` are the rows of calibrated
    matrices by name, as codes and scales. `sparse` is a format of compressed-tensors for the projections that
    are smaller in it."""

    source: CheckpointReader
    type: str
    converter: Converter
    calibrated: bool = False
    ready: Mapping[str, Bytes] = {}
    tables: Mapping[str, str] = {}
    sparse: str = ""

    def outputs(self) -> list[TensorOutput]:
        """Every tensor, in the checkpoint's order."""
        if self.is_integer and self.source.config["model_type"] == "gpt2":
            raise UnsupportedModel(
                "gpt2 has no Linear layers, whose matrices are what is packed: use bf16, or write GGUF"
            )
        plain = self.type.upper() if self.type.upper() in READABLE else "BF16"
        found: list[TensorOutput] = []
        for name in self.source.tensors:
            if self.is_rotated(name):
                found += self._rotated(name)
            elif self.is_quantized(name):
                found += self._quantized(name)
            else:
                found += self._sparse(name, plain) or [self._plain(name, plain)]
        return found

    def sparsity_config(self, outputs: Sequence[TensorOutput]) -> dict[str, object]:
        """What config.json says where `outputs` hold sparse matrices."""
        stored = {one.sources[0]: one for one in outputs if one.kind == self.sparse}
        sizes = {name: prod(self.source.tensors[name].shape) for name in stored}
        zeros = sum(size - prod(stored[name].shape) for name, size in sizes.items())
        matrices = [name for name, info in self.source.tensors.items() if len(info.shape) == 2]
        dense = [name.removesuffix(".weight") for name in matrices if name not in stored]
        return sparsity_config(self.sparse, zeros / (sum(sizes.values()) or 1), sorted({*dense, "lm_head"}))

    def quantization_config(self) -> dict[str, object] | None:
        """What config.json says of integers; None for floats."""
        if not self.is_integer:
            return None
        if self.type == "int4":
            return QUANTIZATION_CONFIG
        matrices = [name for name, info in self.source.tensors.items() if len(info.shape) == 2]
        weights: dict[str, object] = {
            "num_bits": self._bits,
            "type": "int",
            "symmetric": True,
            "dynamic": False,
            "strategy": "channel" if self._bits == 8 else "group",
            "group_size": None if self._bits == 8 else self._group,
        }
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": _ROUNDED_INPUTS if self.type == "w8a8" else None,
            "output_activations": None,
        }
        kept = [name.removesuffix(".weight") for name in matrices if not self.is_quantized(name)]
        format = "int-quantized" if self.type == "w8a8" else "pack-quantized"
        return {
            "quant_method": "compressed-tensors",
            "format": format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group | {"format": format}},
            "ignore": sorted({*kept, "lm_head"}),
        }

    @property
    def _bits(self) -> int:
        return 4 if self.type == "w4a16" else 8

    @property
    def is_integer(self) -> bool:
        """Whether projections become integers."""
        return self.type in INTEGERS

    @property
    def _group(self) -> int:
        inputs = [info.shape[1] for name, info in self.source.tensors.items() if self._is_projection(name)]
        return 128 if not self.calibrated and all(k % 128 == 0 for k in inputs) else 32

    def _is_projection(self, name: str) -> bool:
        info = self.source.tensors[name]
        return len(info.shape) == 2 and class_of(name, 2) in _QUANTIZED and name.endswith(".weight")

    def is_rotated(self, name: str) -> bool:
        """Whether a tensor becomes integers of our own."""
        if self.type != "int4" or not (self._is_projection(name) or name in self.tables):
            return False
        k = self.source.tensors[name].shape[1]
        return name.endswith(".weight") and k % 32 == 0 and k <= MAX_INPUTS

    def is_quantized(self, name: str) -> bool:
        """Whether a projection becomes integers."""
        if self.type == "int4":
            return name not in self.tables and self.is_rotated(name)
        if not self.is_integer or not self._is_projection(name):
            return False
        k = self.source.tensors[name].shape[1]
        return k % (32 if self._bits == 8 else self._group) == 0  # as our own reader takes them

    def _rotated(self, name: str) -> list[TensorOutput]:
        n, k = self.source.info(name).shape
        packed = RotatedRows(self.tables.get(name, "int4"), k)

        def converted() -> Iterator[Bytes]:
            rows = float_rows(self.source, name)
            if name in self.ready:
                return self.converter.given(name, rows, self.ready[name], packed.decode)
            return self.converter.convert(name, rows, packed.encode, packed.decode)

        return packed.outputs(name, n, converted)

    def _plain(self, name: str, kind: str) -> TensorOutput:
        shape = self.source.info(name).shape
        blocks = self._floats(name, kind)
        return TensorOutput(name, kind, shape, prod(shape) * READABLE[kind], (name,), blocks)

    def _floats(self, name: str, kind: str) -> Callable[[], Iterator[Bytes]]:
        def blocks() -> Iterator[Bytes]:
            return self.converter.convert(
                name,
                float_rows(self.source, name),
                lambda rows: quantize(kind, rows),
                lambda data: dequantize(BY_NAME[kind], data.reshape(-1)),
            )

        return blocks

    def _sparse(self, name: str, kind: str) -> list[TensorOutput]:
        """A projection in the sparse format; nothing where it is not smaller there."""
        if not self.sparse or not self._is_projection(name):
            return []
        n, k = self.source.info(name).shape
        blocks = self._floats(name, kind)
        found = SparseRows(self.sparse, kind, n, k).outputs(name, blocks)
        return found if sum(one.nbytes for one in found) < n * k * READABLE[kind] else []

    def _quantized(self, name: str) -> list[TensorOutput]:
        n, k = self.source.info(name).shape
        group = k if self._bits == 8 else self._group
        packed = PackedRows(self._bits, group)
        scales: list[Bytes] = []  # filled while the codes are written, which is before they are

        def codes() -> Iterator[Bytes]:
            scales.clear()
            rows = float_rows(self.source, name)
            if name in self.ready:
                converted = self.converter.given(name, rows, self.ready[name], packed.decode)
            else:
                converted = self.converter.convert(name, rows, packed.encode, packed.decode)
            for data in converted:
                scales.append(data[:, packed.code_bytes(k) :])
                codes = data[:, : packed.code_bytes(k)]
                yield codes ^ np.uint8(128) if self.type == "w8a8" else codes  # there bytes have a sign

        stem = name.removesuffix("weight")
        if self.type == "w8a8":
            return [
                TensorOutput(name, "I8", (n, k), n * k, (name,), codes),
                TensorOutput(f"{stem}weight_scale", "BF16", (n, 1), n * 2, (name,), lambda: iter(scales)),
            ]
        width, groups = packed.code_bytes(k), k // group
        shape = np.array([n, k], "<i8").view(np.uint8)
        return [
            TensorOutput(f"{stem}weight_packed", "I32", (n, width // 4), n * width, (name,), codes),
            TensorOutput(
                f"{stem}weight_scale", "BF16", (n, groups), n * groups * 2, (name,), lambda: iter(scales)
            ),
            TensorOutput(f"{stem}weight_shape", "I64", (2,), 16, (name,), lambda: iter([shape])),
        ]


class PackedRows(Struct, frozen=True):
    """Rows [n, k] as bytes [n, codes then bf16 scales], with one scale for `group` numbers."""

    bits: int
    group: int

    def code_bytes(self, k: int) -> int:
        """Of a row's codes."""
        return k * self.bits // 8

    def encode(self, rows: Floats) -> Bytes:
        """Each number by itself to the nearest."""
        top = 1 << (self.bits - 1)
        low = -top if self.bits == 4 else 1 - top
        scales, _, codes = symmetric_bf16(rows.reshape(-1, self.group), low, top - 1)
        unsigned = (codes + top).astype(np.uint8).reshape(rows.shape)
        if self.bits == 4:
            unsigned = unsigned[:, ::2] | unsigned[:, 1::2] << np.uint8(4)
        return np.concatenate([unsigned, scales.reshape(len(rows), -1)], axis=1)

    def decode(self, data: Bytes) -> Floats:
        """The numbers that the bytes stand for."""
        k = data.shape[1] * self.group * 8 // (self.group * self.bits + 16)
        codes, scales = data[:, : self.code_bytes(k)], data[:, self.code_bytes(k) :]
        if self.bits == 4:
            codes = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=2).reshape(len(data), k)
        floats = dequantize(BY_NAME["BF16"], np.ascontiguousarray(scales).reshape(-1))
        steps = codes.astype(np.float32) - np.float32(1 << (self.bits - 1))
        return (steps.reshape(-1, self.group) * floats[:, None]).reshape(len(data), k)
