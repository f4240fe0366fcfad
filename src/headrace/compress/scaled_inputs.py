"""Inputs of a program that can be scaled: those that a norm, values of attention or an up projection make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from headrace.ops.value import Ints, Value
from headrace.program.program import Instruction, Program


class ScaledInput(Struct, frozen=True, eq=False):
    """`matrices` [n, k] are all that reads the input. Entry `channel_of[j]` of each tensor of `producers`
    makes its number j; the model adds `plus` to them. `channels` is their size; `is_norm` where they are a
    norm's."""

    matrices: tuple[str, ...]
    producers: tuple[str, ...]
    channel_of: Ints
    channels: int
    is_norm: bool
    plus: float = 0.0


def scaled_inputs(program: Program) -> list[ScaledInput]:
    """In the program's order."""
    finder = _Finder(program)
    found = [finder.of(value) for one in program.expanded() for value in one.outputs]
    return [one for one in found if one is not None]


class _Finder:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._readers: dict[Value, list[Instruction]] = defaultdict(list)
        self._maker: dict[Value, Instruction] = {}
        for one in program.expanded():
            for value in one.inputs:
                if value is not None:
                    self._readers[value].append(one)
            self._maker |= dict.fromkeys(one.outputs, one)
        self._makers: dict[str, Callable[[Instruction, int], ScaledInput | None]] = {
            "rms_norm": self._norm,
            "layer_norm": self._norm,
            "gated_act": self._gated,
            "attend": self._attended,
        }

    def of(self, value: Value) -> ScaledInput | None:
        """None where something else reads the value, or nothing that can be scaled makes it."""
        readers, maker = self._readers[value], self._maker[value]
        if not readers or maker.name not in self._makers or value is self._program.output:
            return None
        names: list[str] = []
        for one in readers:
            matrix = one.inputs[1] if one.name == "linear" and one.inputs[0] is value else None
            if matrix is None or not self._is_own(matrix):
                return None
            names.append(matrix.name)
        made = self._makers[maker.name](maker, int(value.shape[1]))
        if made is None:
            return None
        return ScaledInput(
            tuple(names), made.producers, made.channel_of, made.channels, made.is_norm, made.plus
        )

    def _norm(self, maker: Instruction, size: int) -> ScaledInput | None:
        tensors = [value for value in maker.inputs[1:] if value is not None]
        width = int(tensors[0].shape[0]) if tensors else 0
        if not width or size % width or maker.attrs.get("runs", 1) != 1:
            return None
        plus = {self._plus(value) for value in tensors}
        if len(plus) != 1 or (added := plus.pop()) is None:
            return None
        names = tuple(self._stored(value) for value in tensors)
        return ScaledInput((), names, np.arange(size, dtype=np.int32) % width, width, True, added)

    def _gated(self, maker: Instruction, size: int) -> ScaledInput | None:
        up = maker.inputs[1]
        assert up is not None
        names = self._linear(up)
        order = np.arange(size, dtype=np.int32)
        return None if names is None else ScaledInput((), names, order, size, False)

    def _attended(self, maker: Instruction, size: int) -> ScaledInput | None:
        """Query heads of a group share the channels of their values."""
        cache = maker.inputs[1]
        assert cache is not None
        writers = [one for one in self._readers[cache] if one.name == "kv_write"]
        if len(writers) != 1 or len(self._readers[cache]) != 2 or (values := writers[0].inputs[1]) is None:
            return None
        head, width = int(maker.attr("value_dim")), int(values.shape[1])
        names = self._linear(values)
        if names is None or size % width or width % head:
            return None
        heads = np.arange(size // head) // (size // width)
        channel_of = (heads[:, None] * head + np.arange(head)).reshape(-1).astype(np.int32)
        return ScaledInput((), names, channel_of, width, False)

    def _linear(self, value: Value) -> tuple[str, ...] | None:
        """Matrix and bias of the linear layer whose output is the value, and is read once."""
        maker = self._maker.get(value)
        if maker is None or maker.name != "linear" or len(self._readers[value]) != 1:
            return None
        tensors = [tensor for tensor in maker.inputs[1:] if tensor is not None]
        return tuple(one.name for one in tensors) if all(map(self._is_own, tensors)) else None

    def _is_own(self, tensor: Value) -> bool:
        """Whether it is a whole tensor of the checkpoint that is used once."""
        program, name = self._program, tensor.name
        is_changed = name in program.parts or name in program.stacks or name in program.derived
        return tensor.kind == "weight" and len(self._readers[tensor]) == 1 and not is_changed

    def _plus(self, tensor: Value) -> float | None:
        """What is added to a norm's whole tensor; None where it is none, or not used once."""
        if self._is_own(tensor):
            return 0.0
        name, part = self._program.parts.get(tensor.name, ("", None))
        is_whole = part is not None and not part.first and not part.block and part.of == tensor.shape[0]
        shared = sum(stored == name for stored, _ in self._program.parts.values()) > 1
        if part is None or not is_whole or shared or len(self._readers[tensor]) != 1:
            return None
        return part.plus

    def _stored(self, tensor: Value) -> str:
        return self._program.parts.get(tensor.name, (tensor.name, None))[0]
