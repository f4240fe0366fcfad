"""Runs a program over calibration windows, one instruction for all windows before the next.

So each matrix is read once, is rounded when its inputs are known, and later layers see what the rounded ones
give. Memory holds the windows' live values, one matrix and its Hessian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.compress.gptq import Moments
from headrace.kv.pages import PAGE_TOKENS, pages_for
from headrace.loading.program_weights import ProgramWeights
from headrace.ops.kv_write import KvCache
from headrace.ops.value import Array, Ints, Value
from headrace.program.program import Instruction, Program
from headrace.program.step import INPUT_SHAPES, Step, single_step

Round = Callable[[str, Moments], Array]
"""With a matrix' name and the second moments [k, k] of its inputs: the matrix in its place, [n, k]."""


def walk(
    program: Program,
    weights: ProgramWeights,
    windows: Ints,
    targets: frozenset[str],
    round_: Round,
) -> None:
    """Call `round_` for the matrices `targets` of linear layers, in the program's order, with windows [N, L]
    of tokens. Nothing is computed after the last of them."""
    walker = _Walker(program, weights, windows)
    instructions = program.expanded()
    is_target = [_matrix(one) in targets for one in instructions]
    last = len(is_target) - 1 - is_target[::-1].index(True)
    last_use = _last_uses(instructions)
    for at, instruction in enumerate(instructions[: last + 1]):
        name = _matrix(instruction)
        given = round_(name, walker.moments(instruction)) if name is not None and is_target[at] else None
        walker.compute(instruction, given)
        walker.drop(
            [
                value
                for value in (*instruction.inputs, *instruction.outputs)
                if value is not None and last_use[value] <= at
            ]
        )


class _Walker:
    """Values of each window by program value."""

    def __init__(self, program: Program, weights: ProgramWeights, windows: Ints) -> None:
        self._program, self._weights = program, weights
        self._names = {value: name for name, value in program.weights.items()}
        last = np.array([windows.shape[1] - 1], np.int32)
        self._steps = [single_step(one, 0, len(one), last, page_tokens=PAGE_TOKENS) for one in windows]
        self._values: list[dict[Value, Any]] = [{} for _ in windows]
        self._moments: dict[Value, Moments] = {}

    def moments(self, instruction: Instruction) -> Moments:
        """X^T X of a linear layer's inputs over all windows; kept while other matrices have the same."""
        x = instruction.inputs[0]
        assert x is not None
        if x not in self._moments:
            self._moments.clear()
            total = np.zeros((int(x.shape[1]), int(x.shape[1])))
            for values in self._values:
                rows = values[x]
                total += rows.T @ rows
            self._moments[x] = total
        return self._moments[x]

    def compute(self, instruction: Instruction, matrix: Array | None) -> None:
        """For all windows; `matrix` takes the place of a linear layer's own."""
        assert instruction.op is not None
        fixed: dict[Value, Any] = {}
        for value in instruction.inputs:
            if value is not None and value.kind == "weight":
                fixed[value] = self._weights.float32(self._names[value])
        if matrix is not None:
            assert instruction.inputs[1] is not None
            fixed[instruction.inputs[1]] = matrix
        for step, values in zip(self._steps, self._values, strict=True):
            arguments = [
                None if v is None else self._argument(v, fixed, step, values) for v in instruction.inputs
            ]
            result = instruction.op.body(*arguments, **instruction.attrs)
            outputs: tuple[Array, ...] = () if result is None else (result,)
            values.update(zip(instruction.outputs, outputs, strict=True))

    def of(self, value: Value) -> list[Array]:
        """A value in each window."""
        return [values[value] for values in self._values]

    def drop(self, values: list[Value]) -> None:
        """Values that nothing reads any more."""
        for window in self._values:
            for value in values:
                window.pop(value, None)

    def _argument(self, value: Value, fixed: dict[Value, Any], step: Step, values: dict[Value, Any]) -> Any:
        if value in fixed:
            return fixed[value]
        if value.kind == "input":
            assert value.name in INPUT_SHAPES
            return getattr(step, value.name)
        if value in self._program.constants:
            return self._program.constants[value]
        if value not in values:  # caches and states begin empty
            values[value] = self._empty(value, len(step.tokens))
        return values[value]

    def _empty(self, value: Value, tokens: int) -> KvCache | Array:
        if value not in self._program.caches:
            return np.zeros((1, int(value.shape[1])), np.float32)
        slots = pages_for(tokens, PAGE_TOKENS) * PAGE_TOKENS
        k, v = (np.zeros((slots, int(width)), np.float32) for width in value.shape[1:])
        return KvCache(k, v)


def _matrix(instruction: Instruction) -> str | None:
    """The name of the matrix of a linear layer."""
    weight = instruction.inputs[1] if instruction.name == "linear" else None
    return None if weight is None or weight.kind != "weight" else weight.name


def _last_uses(instructions: tuple[Instruction, ...]) -> dict[Value, int]:
    return {
        value: at
        for at, instruction in enumerate(instructions)
        for value in (*instruction.inputs, *instruction.outputs)
        if value is not None
    }


See = Callable[[Instruction, Callable[[Value], list[Array]]], None]
"""With an instruction that was computed, and a function from one of its inputs or outputs to the value in
each window."""


def observe(program: Program, weights: ProgramWeights, windows: Ints, see: See) -> None:
    """Compute the program over windows [N, L] of tokens, and show each instruction."""
    walker = _Walker(program, weights, windows)
    instructions = program.expanded()
    last_use = _last_uses(instructions)
    for at, instruction in enumerate(instructions):
        walker.compute(instruction, None)
        see(instruction, walker.of)
        values = (*instruction.inputs, *instruction.outputs)
        walker.drop([value for value in values if value is not None and last_use[value] <= at])
