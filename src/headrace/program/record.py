"""Record a model: run its definition on symbolic values and keep the instructions that it emits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import ProgramError
from headrace.ops.builder import Builder
from headrace.ops.op import Op
from headrace.ops.tensor_part import DerivedTensor, TensorSlice
from headrace.ops.value import Array, Attr, Ints, Value
from headrace.program.program import Instruction, Program
from headrace.program.step import INPUT_SHAPES


class Recorder:
    """The `Builder` that a model definition gets while it is recorded (see ops/builder.py)."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.weights: dict[str, Value] = {}
        self.parts: dict[str, tuple[str, TensorSlice]] = {}
        self.stacks: dict[str, tuple[str, ...]] = {}
        self.derivations: dict[str, DerivedTensor] = {}
        self.constants: dict[Value, Array | Ints] = {}
        self.caches: dict[int, Value] = {}
        self.states: dict[tuple[int, str], Value] = {}
        self.tokens = self._input("tokens")
        self.token_types = self._input("token_types")
        self.positions = self._input("positions")
        self.slots = self._input("slots")
        self.query_starts = self._input("query_starts")
        self.lengths = self._input("lengths")
        self.block_tables = self._input("block_tables")
        self.rows = self._input("rows")
        self.state_slots = self._input("state_slots")

    def _input(self, name: str) -> Value:
        return Value(name, INPUT_SHAPES[name], "input", self)

    def weight(self, name: str, *shape: int, part: TensorSlice | None = None, stack: int = 0) -> Value:
        if part is not None:
            tensor, name = name, f"{name}{part}"
            self.parts[name] = tensor, part
        if stack:
            self.stacks[name] = tuple(name.replace("*", str(i)) for i in range(stack))
        value = self.weights.setdefault(name, Value(name, shape, "weight", self))
        if value.shape != shape:
            raise ProgramError(f"weight {name} is used as {value.shape} and as {shape}")
        return value

    def derived(self, name: str, *shape: int, of: DerivedTensor) -> Value:
        self.derivations.setdefault(name, of)
        return self.weight(name, *shape)

    def constant(self, name: str, data: Array | Ints) -> Value:
        for value, known in self.constants.items():
            if value.name == name and known is data:
                return value
        value = Value(name, data.shape, "constant", self)
        self.constants[value] = data
        return value

    def cache(self, layer: int, width: int, value_width: int | None = None) -> Value:
        shape = ("S", width, width if value_width is None else value_width)
        return self.caches.setdefault(layer, Value(f"kv{layer}", shape, "state", self))

    def state(self, layer: int, name: str, width: int) -> Value:
        value = Value(f"{name}{layer}", ("N", width), "state", self)
        return self.states.setdefault((layer, name), value)

    def emit(self, op: object, inputs: tuple[Value | None, ...], attrs: dict[str, Attr]) -> Any:
        assert isinstance(op, Op)
        shapes = op.output_shapes(tuple(None if v is None else v.shape for v in inputs), attrs)
        outputs = tuple(Value(f"t{len(self.instructions)}", shape, "temp", self) for shape in shapes)
        self.instructions.append(Instruction(op.name, inputs, outputs, attrs, op))
        return outputs[0] if len(outputs) == 1 else (outputs or None)


def record(definition: Callable[[Builder], Value]) -> Program:
    """The program of a model definition (a function from a builder to logits)."""
    recorder = Recorder()
    output = definition(recorder)
    caches = tuple(recorder.caches[layer] for layer in sorted(recorder.caches))
    return Program(
        tuple(recorder.instructions),
        recorder.weights,
        recorder.constants,
        caches,
        tuple(recorder.states.values()),
        output,
        recorder.parts,
        recorder.stacks,
        recorder.derivations,
    )
