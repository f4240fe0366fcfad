"""Print a program in readable form."""

from __future__ import annotations

from headrace.program.plan import ArenaPlan
from headrace.program.program import Instruction, Program


def format_program(program: Program, arena: ArenaPlan | None = None) -> str:
    """One line per instruction, fused parts indented; with an arena plan also byte offsets."""
    lines = [f"# {len(program.instructions)} instructions, {len(program.weights)} weights"]
    for instruction in program.instructions:
        place = ""
        if arena is not None and instruction.outputs:
            place = "  @" + ",".join(str(arena.placements[v].offset) for v in instruction.outputs)
        lines.append(_line(instruction) + place)
        lines += [f"    {_line(part)}" for part in instruction.parts]
    return "\n".join([*lines, f"return {program.output!r}"])


def _line(instruction: Instruction) -> str:
    made = ", ".join(repr(v) for v in instruction.outputs) or "effect"
    taken = [v.name for v in instruction.inputs if v is not None]
    attrs = [f"{name}={value}" for name, value in instruction.attrs.items()]
    return f"{made} = {instruction.name}({', '.join(taken + attrs)})"
