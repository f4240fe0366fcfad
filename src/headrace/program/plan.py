"""Plan memory: one arena, with an offset for every value; space is reused as soon as a value is dead."""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import ProgramError
from headrace.ops.value import Value
from headrace.program.program import Program
from headrace.program.shares import shared_values

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


class Placement(Struct, frozen=True):
    """Location of a float32 value: [T or R rows, columns] at byte `offset` of the arena."""

    rows: str
    columns: int
    offset: int
    nbytes: int


class ArenaPlan(Struct, frozen=True):
    """Placements for the largest step; a smaller step uses the front of each buffer."""

    placements: dict[Value, Placement]
    nbytes: int


def plan_arena(program: Program, *, max_tokens: int, max_rows: int) -> ArenaPlan:
    """Assign offsets, largest buffer first, each at the lowest offset free during the buffer's lifetime.
    Values that ranks share have none here."""
    shared = shared_values(program)
    lives = {value: life for value, life in _lives(program).items() if value not in shared}
    return _planned(lives, max_tokens, max_rows)


def plan_shared_arena(program: Program, *, max_tokens: int, max_rows: int) -> ArenaPlan:
    """The same of the values that ranks share. Ranks meet where values are gathered, and only there: until
    the meeting after the last use of a value another rank may still read it, so what is gathered before that
    meeting does not lie over it."""
    shared, last = shared_values(program), len(program.instructions)
    lives = {value: life for value, life in _lives(program).items() if value in shared}
    meetings = _meetings(program)
    lives = {
        value: (start, next((at for at in meetings if at > end), last))
        for value, (start, end) in lives.items()
    }
    return _planned(lives, max_tokens, max_rows)


def _meetings(program: Program) -> list[int]:
    """The instructions after which ranks meet: the last ones of those that gather, one after the other."""
    gathers = [ins.name == "all_gather" for ins in program.instructions]
    return [at for at, here in enumerate(gathers) if here and gathers[at + 1 : at + 2] != [True]]


def _planned(lives: dict[Value, tuple[int, int]], max_tokens: int, max_rows: int) -> ArenaPlan:
    limits = {"T": max_tokens, "R": max_rows}
    placed: list[tuple[Value, Placement]] = []
    for value in sorted(lives, key=lambda v: (-_nbytes(v, limits), lives[v])):
        start, end = lives[value]
        nbytes = _nbytes(value, limits)
        busy = sorted(
            (p.offset, p.offset + p.nbytes)
            for other, p in placed
            if lives[other][0] <= end and start <= lives[other][1]
        )
        offset = 0
        for low, high in busy:
            if offset + nbytes <= low:
                break
            offset = max(offset, high)
        placed.append((value, Placement(str(value.shape[0]), _columns(value), offset, nbytes)))
    total = max((p.offset + p.nbytes for _, p in placed), default=0)
    return ArenaPlan(dict(placed), total)


def _lives(program: Program) -> dict[Value, tuple[int, int]]:
    """First and last instruction of each buffer's lifetime; the output stays live after the program."""
    # Inputs are written before the first instruction.
    lives: dict[Value, tuple[int, int]] = dict.fromkeys(program.inputs, (0, 0))
    for index, instruction in enumerate(program.instructions):
        for value in (*instruction.outputs, *instruction.inputs):
            if value is not None and value.kind == "temp":
                lives[value] = (lives.get(value, (index, index))[0], index)
    lives[program.output] = (lives[program.output][0], len(program.instructions))
    return lives


def _columns(value: Value) -> int:
    columns = value.shape[1]
    if len(value.shape) != 2 or not isinstance(columns, int) or value.shape[0] not in ("T", "R"):
        raise ProgramError(f"{value} cannot be placed: buffers are [T or R, columns]")
    return columns


def _nbytes(value: Value, limits: dict[str, int]) -> int:
    nbytes = limits[str(value.shape[0])] * _columns(value) * 4
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
