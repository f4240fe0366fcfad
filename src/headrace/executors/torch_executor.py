"""The torch executor: runs the unfused program with torch_ops, on `cpu` or `cuda`.

Not covered by the determinism contract: torch's order of summation differs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from headrace.errors import ProgramError, UsageError
from headrace.executors.adapters import Adapter, changing, row_adapters
from headrace.executors.executor import ExecutorLimits
from headrace.executors.torch_ops import OPERATIONS, Tensor, Torch, TorchKvCache
from headrace.ops.value import Array, Ints, Value
from headrace.program.program import Instruction, Program
from headrace.program.step import Step

DataType = Literal["float32", "bfloat16"]


class TorchExecutor:
    """Runs a program on torch tensors; `weights` are float32 arrays by checkpoint name.

    Weights, activations and KV cache have `data_type` and are on `device` (None: `cuda` if available, else
    `cpu`); norms and RoPE are computed in float32. Raises UsageError if torch or the device is missing.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Array],
        capacity: ExecutorLimits,
        *,
        device: str | None = None,
        data_type: DataType = "float32",
    ) -> None:
        self.capacity = capacity
        self._torch = _import_torch()
        self._device = _find_device(self._torch, device)
        self._instructions = program.expanded()
        self._output = program.output
        self._adapters: dict[int, Adapter] = {}
        unknown = sorted({ins.name for ins in self._instructions} - OPERATIONS.keys())
        if unknown:
            raise ProgramError(f"the torch executor has no call for {', '.join(unknown)}")
        dtype = getattr(self._torch, data_type)
        # Copy, because the arrays may be read-only views of a mapped file.
        self._fixed: dict[Value, Any] = {
            value: self._torch.tensor(weights[name], dtype=dtype, device=self._device)
            for name, value in program.weights.items()
        }
        self._fixed |= {value: self._to_device(data) for value, data in program.constants.items()}
        slots = capacity.page_count * capacity.page_tokens
        for cache in program.caches:
            k, v = (
                self._torch.zeros(slots, width, dtype=dtype, device=self._device) for width in cache.shape[1:]
            )
            self._fixed[cache] = TorchKvCache(k, v)

        for state in program.states:
            self._fixed[state] = self._torch.zeros(capacity.state_slots, state.shape[1], device=self._device)

    @property
    def adapter_bytes(self) -> int:
        """See Executor."""
        return 4

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """See Executor."""
        others = {one: kept for one, kept in self._adapters.items() if one != slot}
        self._adapters = others if adapter is None else others | {slot: adapter}  # a step may be running

    def run(self, step: Step, trace: Callable[[Instruction, tuple[Array, ...]], None] | None = None) -> Array:
        """Logits [R, V], float32. `trace` is called for every instruction, as in ReferenceExecutor."""
        inputs: dict[str, Any] = {
            name: self._to_device(getattr(step, name))
            for name in ("tokens", "token_types", "positions", "slots", "block_tables", "rows")
        }
        # Loop bounds stay on the host: reading them back from a device would stall it in every layer.
        inputs |= {name: getattr(step, name) for name in ("query_starts", "lengths", "state_slots")}
        values = dict(self._fixed)
        rows = row_adapters(step) if self._adapters else None
        if rows is not None:
            inputs |= {
                "adapters": self._to_device(rows),
                "adapters of rows": self._to_device(rows[step.rows]),
            }
        with self._torch.inference_mode():
            for instruction in self._instructions:
                outputs = self._compute(instruction, values, inputs)
                if trace is not None:
                    trace(instruction, tuple(_to_numpy(output) for output in outputs))
            return _to_numpy(values[self._output])

    def _compute(
        self, instruction: Instruction, values: dict[Value, Any], inputs: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        arguments = [
            None if v is None else inputs[v.name] if v.kind == "input" else values[v]
            for v in instruction.inputs
        ]
        result = OPERATIONS[instruction.name](self._torch, *arguments, **instruction.attrs)
        if instruction.name == "linear" and "adapters" in inputs:
            result = self._adapted(instruction, result, arguments[0], inputs)
        outputs: tuple[Tensor, ...] = () if result is None else (result,)
        values.update(zip(instruction.outputs, outputs, strict=True))
        return outputs

    def _adapted(self, linear: Instruction, y: Tensor, x: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The product with what the rows' adapters add."""
        source, weight = linear.inputs[:2]
        assert source is not None and weight is not None
        rows = inputs["adapters of rows" if source.shape[0] == "R" else "adapters"]
        for slot, pair in changing(weight.name, self._adapters).items():
            a, b = (self._to_device(half).to(x.dtype) for half in (pair.a, pair.b))
            y = y + self._torch.where((rows == slot)[:, None], pair.scale * (x @ a.T) @ b.T, 0.0)
        return y

    def _to_device(self, data: Array | Ints) -> Tensor:
        return self._torch.tensor(data, device=self._device)


def _import_torch() -> Torch:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UsageError(
            f"the torch executor needs PyTorch, which is not installed ({error}): pip install headrace[torch]"
        ) from error


def _find_device(torch: Torch, name: str | None) -> Any:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"torch {torch.__version__} has no device '{name}' here ({reason}): use 'cpu' or 'cuda'"
        ) from error


def _to_numpy(tensor: Tensor) -> Array:
    return tensor.float().cpu().numpy()
