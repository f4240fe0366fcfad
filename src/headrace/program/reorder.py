"""Reorder the inputs of linears to match the column order of their stored weights."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.ops.take_columns import take_columns
from headrace.ops.value import Array, Ints, Value
from headrace.program.program import Instruction, Program
from headrace.program.verify import verify


def reorder_inputs(program: Program, order_of: Callable[[str], Ints | None]) -> Program:
    """The program with one take_columns per distinct column order of each value.

    `order_of` maps a weight's name to the input index of each of its columns, or to None for the natural
    order. Raises UnsupportedModel if a reordered weight is used by anything but a linear.
    """
    orders = {
        name: order
        for name, value in program.weights.items()
        if len(value.shape) == 2 and (order := order_of(name)) is not None
    }
    if not orders:
        return program
    made: dict[tuple[Value, bytes], Value] = {}
    constants: dict[Value, Array | Ints] = dict(program.constants)
    instructions: list[Instruction] = []
    for instruction in program.instructions:
        weight = next((v for v in instruction.inputs if v is not None and v.name in orders), None)
        if weight is None or weight.kind != "weight":
            instructions.append(instruction)
            continue
        x = instruction.inputs[0]
        if instruction.name != "linear" or x is None:
            raise UnsupportedModel(
                f"tensor {weight.name!r} has its inputs in another order (act-order) and is used by "
                f"'{instruction.name}': only products ('linear') can follow it; use one without act-order"
            )
        order = orders[weight.name]
        key = x, order.tobytes()
        if key not in made:
            name = f"order{len(made)}"
            constant = Value(name, order.shape, "constant", x.recorder)
            constants[constant] = order
            made[key] = Value(f"{x.name}.{name}", x.shape, "temp", x.recorder)
            taken = Instruction("take_columns", (x, constant), (made[key],), op=take_columns)
            instructions.append(taken)
        instructions.append(replace(instruction, inputs=(made[key], *instruction.inputs[1:])))
    return verify(replace(program, instructions=tuple(instructions), constants=constants))
