"""Check the rules of a program; run after recording and after every pass."""

from __future__ import annotations

from headrace.errors import ProgramError
from headrace.ops.value import Value
from headrace.program.program import Instruction, Program

MAX_OPS = 32  # keeps the op set small: this is not a compiler


def verify(program: Program) -> Program:
    """Returns the same program, or raises ProgramError. The rules: every value is defined once and before
    its use; shapes follow the ops' signatures; a fused instruction has exactly the inputs and outputs of
    its parts; no cache is read before it is written; the output exists.
    """
    names = {part.name for part in program.expanded()}
    if len(names) > MAX_OPS:
        raise ProgramError(f"{len(names)} different ops, at most {MAX_OPS} are allowed")
    defined: set[Value] = set(program.inputs)
    written: set[Value] = set()
    for instruction in program.instructions:
        _check_fused(instruction)
        for part in instruction.expand():
            _check_instruction(part, defined, written)
    if program.output not in defined:
        raise ProgramError(f"the output {program.output} is never computed")
    return program


def _check_instruction(part: Instruction, defined: set[Value], written: set[Value]) -> None:
    assert part.op is not None
    for index, value in enumerate(part.inputs):
        if value is None:
            continue
        if value.kind == "temp" and value not in defined:
            raise ProgramError(f"{part.name}: {value} is used before it is defined")
        if value.kind == "state":
            if index == part.op.writes:
                written.add(value)
            elif value not in written:
                raise ProgramError(f"{part.name}: {value} is read before this step wrote it")
    shapes = part.op.output_shapes(tuple(None if v is None else v.shape for v in part.inputs), part.attrs)
    if shapes != tuple(v.shape for v in part.outputs):
        raise ProgramError(f"{part.name}: outputs {part.outputs} should have shapes {shapes}")
    for value in part.outputs:
        if value in defined:
            raise ProgramError(f"{part.name}: {value} is defined twice")
        defined.add(value)


def _check_fused(instruction: Instruction) -> None:
    if not instruction.parts:
        return
    made = {v for part in instruction.parts for v in part.outputs}
    taken = {v for part in instruction.parts for v in part.inputs if v is not None} - made
    if {v for v in instruction.inputs if v is not None} != taken:
        raise ProgramError(f"{instruction.name} must take {taken}, it takes {instruction.inputs}")
    if not set(instruction.outputs) <= made:
        raise ProgramError(f"{instruction.name} shows {instruction.outputs}, its parts make {made}")
