"""A checkpoint's tensors as those of a GGUF file of chosen types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod

import numpy as np
from msgspec import Struct

from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.gguf.architecture import Architecture
from headrace.weights.gguf.tensor_names import stored_name
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.quantize import quantize
from headrace.weights.row_order import RowOrder
from headrace.weights.tensor_output import Converter, TensorOutput, float_rows, read_floats
from headrace.weights.tensor_roles import class_of

# What `--quantization` may name, and llama.cpp's number for a file that is mostly of that type.
FILE_TYPES: Mapping[str, int] = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9,
    "q4_k": 14, "q5_k": 16, "q6_k": 18, "bf16": 32,
}  # fmt: skip
_FEW_BITS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K")
# Small, and read by other programs only as plain floats.
_PLAIN = ("position_embd.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight")


class GgufExport(Struct, frozen=True, kw_only=True):
    """How a checkpoint becomes GGUF. `head_dim` matters where the architecture orders rows by heads;
    `transposed`: its matrices are stored as [inputs, outputs]. `ready` are matrices by name, in the order of
    the checkpoint's rows, whose blocks were rounded on a calibration text; `types` those that have another
    type than `type` says."""

    source: CheckpointReader
    architecture: Architecture
    type: str
    head_dim: int
    converter: Converter
    transposed: bool = False
    ready: Mapping[str, Bytes] = {}
    types: Mapping[str, str] = {}

    def outputs(self) -> list[TensorOutput]:
        """Every tensor, in the checkpoint's order. UnsupportedModel for one that has no name in GGUF."""
        stacks: dict[str, list[str]] = {}
        for name in self.source.tensors:
            stored, _ = stored_name(name, self.architecture)
            stacks.setdefault(stored, []).append(name)
        for names in stacks.values():
            names.sort(key=lambda name: stored_name(name, self.architecture)[1] or 0)
        return [self._output(stored, names) for stored, names in stacks.items()]

    def _output(self, stored: str, names: list[str]) -> TensorOutput:
        shape = self._shape(names[0])
        kind = BY_NAME[self._type(stored, names[0], shape)]
        nbytes = len(names) * prod(shape) // kind.block_size * kind.block_bytes
        stacked = (len(names), *shape) if stored_name(names[0], self.architecture)[1] is not None else shape

        def blocks() -> Iterator[Bytes]:
            return chain.from_iterable(self._blocks(name, kind.name) for name in names)

        return TensorOutput(stored, kind.name, stacked, nbytes, tuple(names), blocks)

    def _shape(self, name: str) -> tuple[int, ...]:
        """As the file has it."""
        shape = self.source.info(name).shape
        if self.is_turned(name):
            return shape[::-1]
        change = self.architecture.shape_of(name)
        return shape if change is None else change.store(shape)

    def _type(self, stored: str, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) < 2 or shape[-1] == 1 or stored.endswith(_PLAIN):
            return "F32"
        if name in self.types:
            return self.types[name]
        wanted = self.type.upper()
        if wanted in _FEW_BITS and class_of(name, 2) in ("token table", "output"):
            wanted = "Q6_K"  # a quarter of a small model's size, and what its answers depend on most
        return next(kind for kind in (wanted, "Q8_0", "F16") if shape[-1] % BY_NAME[kind].block_size == 0)

    def is_turned(self, name: str) -> bool:
        """Whether a matrix is stored as [inputs, outputs] in the checkpoint."""
        return (
            self.transposed
            and len(self.source.info(name).shape) == 2
            and class_of(name, 2) in ("attention", "mlp")
        )

    def stored_name(self, name: str) -> tuple[str, int | None]:
        """What the file calls a tensor of the checkpoint, and its number in a stack of experts."""
        return stored_name(name, self.architecture)

    def type_of(self, name: str) -> str:
        """The type that a tensor of the checkpoint becomes."""
        stored, _ = stored_name(name, self.architecture)
        return self._type(stored, name, self._shape(name))

    def _blocks(self, name: str, kind: str) -> Iterator[Bytes]:
        def decode(data: Bytes) -> Floats:
            return dequantize(BY_NAME[kind], np.ascontiguousarray(data).reshape(-1))

        if name not in self.ready:
            return self.converter.convert(name, self._rows(name), lambda rows: quantize(kind, rows), decode)
        data, order = self.ready[name], self.architecture.order_of(name)
        if order is not None:
            data = data[order.original(np.arange(len(data)), len(data), self.head_dim)]
        return self.converter.given(name, self._rows(name), data, decode)

    def _rows(self, name: str) -> Iterator[Floats]:
        """Rows as the file orders them, and vectors as it stores them."""
        shape = self.source.info(name).shape
        order, change = self.architecture.order_of(name), self.architecture.change_of(name)
        if self.is_turned(name):  # a column of the checkpoint is a row: the whole matrix is read
            yield np.ascontiguousarray(self.source.float32(name).T)
        elif order is not None and len(shape) == 2:
            yield from self._ordered(name, order)
        elif len(shape) == 2:
            yield from float_rows(self.source, name)
        else:
            values = self.source.float32(name)
            if order is not None:
                values = values[order.original(np.arange(shape[0]), shape[0], self.head_dim)]
            values = values if change is None else change.store(values)
            yield values.reshape(1, -1) if values.ndim < 3 else values.reshape(shape[0], -1)

    def _ordered(self, name: str, order: RowOrder) -> Iterator[Floats]:
        """Whole heads at a time: in one of them, or three heads of different stacks, rows are together."""
        n = self.source.info(name).shape[0]
        rows = order.original(np.arange(n), n, self.head_dim)
        for start in range(0, n, self.head_dim):
            wanted = rows[start : start + self.head_dim]
            first = int(wanted.min())
            block = read_floats(self.source, name, first, int(wanted.max()) - first + 1)
            yield block[wanted - first]
