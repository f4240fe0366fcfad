"""The NumPy executor: runs the unfused program in float32. It is the reference implementation and is slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.executors.adapters import Adapter, changing, lora, row_adapters
from headrace.executors.executor import ExecutorLimits
from headrace.executors.page_memory import PageMemory
from headrace.ops.kv_write import KvCache
from headrace.ops.value import Array, Value
from headrace.program.program import Instruction, Program
from headrace.program.step import INPUT_SHAPES, Step


class ReferenceExecutor:
    """Runs a program on NumPy arrays; `weights` are float32 arrays by checkpoint name.

    `trace` is called with (instruction, outputs) after each instruction. To compare two executors, find the
    first instruction whose outputs differ.
    """

    def __init__(self, program: Program, weights: Mapping[str, Array], capacity: ExecutorLimits) -> None:
        self.capacity = capacity
        self._instructions = program.expanded()
        self._output = program.output
        self._adapters: dict[int, Adapter] = {}
        slots = capacity.page_count * capacity.page_tokens
        self._fixed: dict[Value, Any] = {value: weights[name] for name, value in program.weights.items()}
        self._fixed |= program.constants
        for cache in program.caches:
            k, v = (np.zeros((slots, int(width)), np.float32) for width in cache.shape[1:])
            self._fixed[cache] = KvCache(k, v)
        for state in program.states:
            self._fixed[state] = np.zeros((capacity.state_slots, int(state.shape[1])), np.float32)

    @property
    def adapter_bytes(self) -> int:
        """See Executor."""
        return 4

    @property
    def page_memory(self) -> PageMemory | None:
        """See PagedExecutor."""
        caches = [value for value in self._fixed.values() if isinstance(value, KvCache)]
        parts = [part.view(np.uint8).reshape(-1) for cache in caches for part in (cache.k, cache.v)]
        layout = (
            f"numpy {self.capacity.page_tokens} {[part.size // self.capacity.page_count for part in parts]}"
        )
        return None if self.capacity.state_slots else PageMemory(parts, self.capacity.page_count, layout)

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """See Executor."""
        others = {one: kept for one, kept in self._adapters.items() if one != slot}
        self._adapters = others if adapter is None else others | {slot: adapter}  # a step may be running

    def run(self, step: Step, trace: Any = None) -> Array:
        """Logits [R, V], float32."""
        values = dict(self._fixed)
        for instruction in self._instructions:
            outputs = self._compute(instruction, values, step)
            if trace is not None:
                trace(instruction, outputs)
        return values[self._output]

    def _compute(self, instruction: Instruction, values: dict[Value, Any], step: Step) -> tuple[Array, ...]:
        assert instruction.op is not None
        arguments = [None if v is None else _value(v, values, step) for v in instruction.inputs]
        result = instruction.op.body(*arguments, **instruction.attrs)
        if instruction.name == "linear" and self._adapters and (rows := row_adapters(step)) is not None:
            x, weight = instruction.inputs[:2]
            assert x is not None and weight is not None
            of_rows = rows[step.rows] if x.shape[0] == "R" else rows
            rows_in: Array = values[x] if x.kind == "temp" else _value(x, values, step)
            result = lora(result, rows_in, of_rows, changing(weight.name, self._adapters))
        outputs: tuple[Array, ...] = () if result is None else (result,)
        values.update(zip(instruction.outputs, outputs, strict=True))
        return outputs


def _value(value: Value, values: dict[Value, Any], step: Step) -> Any:
    if value.kind == "input":
        assert value.name in INPUT_SHAPES
        return getattr(step, value.name)
    return values[value]
