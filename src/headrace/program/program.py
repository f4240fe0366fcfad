"""The recorded program: values and instructions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from headrace.errors import ProgramError
from headrace.ops.op import Op
from headrace.ops.tensor_part import DerivedTensor, TensorSlice
from headrace.ops.value import Array, Attr, Ints, Value


class Instruction(Struct, frozen=True, eq=False):
    """One op applied to values. A fused instruction has no op; it is defined by `parts`, the instructions
    that it replaces, in order.
    """

    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attrs: dict[str, Attr] = field(default_factory=dict[str, Attr])
    op: Op | None = None
    parts: tuple[Instruction, ...] = ()

    def expand(self) -> tuple[Instruction, ...]:
        """The unfused instructions that define this one."""
        return self.parts or (self,)

    @property
    def writes(self) -> Value | None:
        """The state (KV cache or recurrent state) that this instruction modifies, if any."""
        for part in self.expand():
            if part.op is not None and part.op.writes is not None:
                return part.inputs[part.op.writes]
        return None

    def attr(self, name: str) -> Any:
        """An attribute of this instruction."""
        return self.attrs[name]


class Program(Struct, frozen=True, eq=False):
    """A model as a flat list of instructions. `weights` are checkpoint tensors by name; `constants` are
    computed from the config, or are column orders (int32); `caches` are the KV caches in layer order,
    `states` the recurrent states; `output` is the logits, [R, V].
    `parts` gives, for weights that are slices of a checkpoint tensor, the tensor and the slice. `stacks`
    names the tensors of weights that concatenate several tensors along their rows,
    `derived` says of what others are computed. `inputs` are values that another program made: that of the
    stage before.
    """

    instructions: tuple[Instruction, ...]
    weights: dict[str, Value]
    constants: dict[Value, Array | Ints]
    caches: tuple[Value, ...]
    states: tuple[Value, ...]
    output: Value
    parts: dict[str, tuple[str, TensorSlice]]
    stacks: dict[str, tuple[str, ...]]
    derived: dict[str, DerivedTensor]
    inputs: tuple[Value, ...] = ()

    @property
    def state_width(self) -> int:
        """Size of one sequence's recurrent states in float32 numbers; 0 if there are none."""
        return sum(int(state.shape[1]) for state in self.states)

    def expanded(self) -> tuple[Instruction, ...]:
        """The instruction list with every fused instruction replaced by its parts."""
        return tuple(part for instruction in self.instructions for part in instruction.expand())

    def experts_per_row(self, moe: Instruction) -> int:
        """Maximum number of experts per row of a `moe`; ProgramError if its gates come from no `route`."""
        gates = moe.inputs[1]
        for instruction in self.expanded():
            if instruction.name == "route" and gates in instruction.outputs:
                return instruction.attr("top_k")
        raise ProgramError(f"the gates {gates} of a moe must come from a route")
