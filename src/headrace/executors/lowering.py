"""Lower a fused program to the instruction list that native/executor executes.

The table of ops in native/ops.inl defines the encoding of each. An op whose inputs and attributes match its
line in the table needs no code here; the others have a method.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace._native import OP_ENUMERATIONS, OP_FORMS
from headrace.errors import ProgramError
from headrace.ops.value import Array, Attr, Value
from headrace.program.program import Instruction, Program

EMBEDDINGS = {"tokens": "embed", "token_types": "embed_token_types", "positions": "embed_positions"}
NONE = -1  # marks an absent input or constant

Lowered = tuple[str, list[int], list[int], list[int], list[int], list[int], list[float]]


class Lowering:
    """Numbers the values, weights and constants of a fused program and encodes its instructions."""

    def __init__(self, program: Program, vectors: Mapping[str, Array]) -> None:
        self._program = program
        self.values: list[Value] = []
        self.matrices = [name for name, value in program.weights.items() if len(value.shape) == 2]
        self.constants: list[Array] = []
        self.instructions: list[Lowered] = []
        self.exchanges: list[tuple[int, int, int, int]] = []
        self._value_ids: dict[Value, int] = {}
        self._constant_ids: dict[Value, int] = {}
        self._caches = {cache: layer for layer, cache in enumerate(program.caches)}
        self._states = {state: index for index, state in enumerate(program.states)}
        self._memory_ids = {**self._caches, **self._states}
        self._matrix_ids = {name: index for index, name in enumerate(self.matrices)}
        for name, value in program.weights.items():
            if len(value.shape) != 2:
                data = vectors[name]
                # A convolution's weight [channels, 1, taps] is read tap by tap.
                self._add_constant(value, data.T if data.ndim == 3 else data)
        for value, data in program.constants.items():
            if data.dtype == np.float32:  # tables of integers are stored in their instruction
                self._add_constant(value, data.astype(np.float32, copy=False))
        for instruction in program.instructions:
            self._lower(instruction)

    def value_id(self, value: Value | None) -> int:
        if value is None:
            return NONE
        if value not in self._value_ids:
            self._value_ids[value] = len(self.values)
            self.values.append(value)
        return self._value_ids[value]

    def _add_constant(self, value: Value, data: Array) -> None:
        self._constant_ids[value] = len(self.constants)
        self.constants.append(np.ascontiguousarray(data, np.float32).ravel())

    def _constant_id(self, value: Value | None) -> int:
        return NONE if value is None else self._constant_ids[value]

    def _lower(self, instruction: Instruction) -> None:
        special = {
            "embed": self._embed,
            "linear": self._fused_linear,
            "fused_linear": self._fused_linear,
            "head_linear": self._head_linear,
            "max_linear": self._max_linear,
            "rope": self._rope,
            "rope_kv_write": self._rope_kv_write,
            "attend": self._attend,
            "causal_conv": self._causal_conv,
            "take_columns": self._take_columns,
            "moe": self._moe,
            "all_gather": self._exchange,
            "slice_columns": self._exchange,
        }
        special.get(instruction.name, self._regular)(instruction)

    def _regular(self, instruction: Instruction) -> None:
        """Buffers, matrices, vectors and attributes, unchanged. The executor has the step's inputs."""
        op = instruction.op
        if op is None or instruction.name not in OP_FORMS:
            raise ProgramError(f"the native executor has no instruction '{instruction.name}'")
        inputs: list[Value | None] = []
        matrices: list[Value] = []
        constants: list[Value | None] = []
        attrs = {**(op.body.__kwdefaults__ or {}), **instruction.attrs}
        for value, pattern in zip(instruction.inputs, op.inputs, strict=True):
            if value is None:
                (inputs if pattern[0] == "T" else constants).append(None)
            elif value.kind == "temp":
                inputs.append(value)
            elif value.kind == "state":
                attrs["state" if value in self._states else "layer"] = self._memory_ids[value]
            elif value.kind != "input":
                matrices.append(value) if value.name in self._matrix_ids else constants.append(value)
        *_, ints, floats = OP_FORMS[instruction.name]
        names = {name.partition(":")[0] for name in (*ints, *floats)}
        if names != set(attrs):
            raise ProgramError(
                f"{instruction.name} has the attributes {sorted(attrs)}, native code {sorted(names)}"
            )
        self._emit(
            instruction.name,
            inputs,
            instruction.outputs,
            matrices=matrices,
            constants=constants,
            ints=[_number(name, attrs) for name in ints],
            floats=[float(attrs[name]) for name in floats],
        )

    def _emit(
        self,
        name: str,
        inputs: list[Value | None],
        outputs: tuple[Value, ...],
        *,
        matrices: list[Value] | None = None,
        constants: list[Value | None] | None = None,
        ints: list[int] | None = None,
        floats: list[float] | None = None,
    ) -> None:
        self.instructions.append(
            (
                name,
                [self.value_id(value) for value in inputs],
                [self.value_id(value) for value in outputs],
                [self._matrix_ids[value.name] for value in matrices or []],
                [self._constant_id(value) for value in constants or []],
                ints or [],
                floats or [],
            )
        )

    def _embed(self, embed: Instruction) -> None:
        ids, table = embed.inputs
        assert ids is not None and table is not None
        self._emit(EMBEDDINGS[ids.name], [], embed.outputs, matrices=[table])

    def _exchange(self, exchange: Instruction) -> None:
        """It follows the instruction before it, or comes before all: instruction, from, to, first column."""
        taken, made = self.value_id(exchange.inputs[0]), self.value_id(exchange.outputs[0])
        self.exchanges.append((len(self.instructions) - 1, taken, made, exchange.attr("first")))

    def _take_columns(self, take: Instruction) -> None:
        x, order = take.inputs
        assert order is not None
        self._emit("take_columns", [x], take.outputs, ints=self._program.constants[order].tolist())

    def _moe(self, moe: Instruction) -> None:
        x, gates, gate, up, down, *biases = moe.inputs
        assert gate is not None and up is not None and down is not None
        ints = [_act(moe.attr("kind")), self._program.experts_per_row(moe)]
        self._emit("moe", [x, gates], moe.outputs, matrices=[gate, up, down], constants=biases, ints=ints)

    def _fused_linear(self, instruction: Instruction) -> None:
        parts = instruction.expand()
        linears = [part for part in parts if part.name == "linear"]
        norm = parts[0] if parts[0].name == "rms_norm" else None
        act = parts[-1] if parts[-1].name == "gated_act" else None
        residual = None
        if parts[-1].name == "add":
            residual = next(v for v in parts[-1].inputs if v is not linears[0].outputs[0])
        weights = [linear.inputs[1] for linear in linears]
        self._emit(
            "fused_linear",
            [(norm or linears[0]).inputs[0], residual],
            instruction.outputs,
            matrices=[weight for weight in weights if weight is not None],
            constants=[norm.inputs[1] if norm else None, *(linear.inputs[2] for linear in linears)],
            ints=[_act(act.attr("kind") if act else "none")],
            floats=[norm.attr("eps") if norm else 0.0],
        )

    def _head_linear(self, product: Instruction) -> None:
        x, weight = product.inputs
        assert x is not None and weight is not None
        heads = int(x.shape[1]) // int(weight.shape[1])
        self._emit("head_linear", [x], product.outputs, matrices=[weight], ints=[heads])

    def _max_linear(self, instruction: Instruction) -> None:
        x, weight, bias = instruction.expand()[0].inputs
        assert weight is not None
        self._emit("max_linear", [x], instruction.outputs, matrices=[weight], constants=[bias])

    def _rope(self, rope: Instruction) -> None:
        x, _, frequencies = rope.inputs
        assert frequencies is not None
        ints = [rope.attr("head_dim"), 2 * _size(frequencies)]
        self._emit("rope", [x], rope.outputs, constants=[frequencies], ints=ints, floats=[rope.attr("scale")])

    def _rope_kv_write(self, instruction: Instruction) -> None:
        q_parts, (*k_parts, write) = _split(instruction.parts)
        q_norm, q_rope = q_parts if len(q_parts) == 2 else (None, q_parts[0])
        k_norm = k_parts[0] if len(k_parts) == 2 else None
        v, cache = write.inputs[1], write.inputs[3]
        head_dim, frequencies = q_rope.attr("head_dim"), q_rope.inputs[2]
        assert frequencies is not None and cache is not None
        self._emit(
            "rope_kv_write",
            [q_parts[0].inputs[0], k_parts[0].inputs[0], v],
            q_rope.outputs,
            constants=[frequencies, *(norm.inputs[1] if norm else None for norm in (q_norm, k_norm))],
            ints=[self._caches[cache], int(q_rope.outputs[0].shape[1]) // head_dim, 2 * _size(frequencies)],
            floats=[q_norm.attr("eps") if q_norm else 0.0, q_rope.attr("scale")],
        )

    def _attend(self, attend: Instruction) -> None:
        q, cache, _, _, _, sinks, bias_q, bias_k, bias, bucket_of = attend.inputs
        assert q is not None and cache is not None
        heads = int(q.shape[1]) // attend.attr("head_dim")
        ints = [self._caches[cache], heads, attend.attr("window"), attend.attr("value_dim")]
        ints += [attend.attrs.get("ahead", 0), attend.attrs.get("buckets", 0)]
        if bucket_of is not None:
            ints += self._program.constants[bucket_of].tolist()
        floats = [attend.attr("scale"), attend.attr("softcap")]
        inputs, constants = [q, bias_q, bias_k], [sinks, bias]
        self._emit("attend", inputs, attend.outputs, constants=constants, ints=ints, floats=floats)

    def _causal_conv(self, conv: Instruction) -> None:
        x, state, w, bias, *_ = conv.inputs
        assert state is not None and w is not None
        ints = [self._states[state], int(w.shape[2]), _act(conv.attr("kind"))]
        self._emit("causal_conv", [x], conv.outputs, constants=[w, bias], ints=ints)


def _split(parts: tuple[Instruction, ...]) -> tuple[list[Instruction], list[Instruction]]:
    """Split into the query's chain, up to the first rope, and the rest: the key's chain and the write."""
    end = next(index for index, part in enumerate(parts) if part.name == "rope") + 1
    return list(parts[:end]), list(parts[end:])


def _act(name: str) -> int:
    return OP_ENUMERATIONS["act"].index(name)


def _number(name: str, attrs: Mapping[str, Attr]) -> int:
    """An integer operand; `kind:act` is the number of a name in the enumeration `act`."""
    name, _, enumeration = name.partition(":")
    value = attrs[name]
    if enumeration:
        return OP_ENUMERATIONS[enumeration].index(str(value))
    if not isinstance(value, int):
        raise ProgramError(f"the attribute {name} is {value}, which is no integer")
    return value


def _size(vector: Value) -> int:
    return int(vector.shape[0])
