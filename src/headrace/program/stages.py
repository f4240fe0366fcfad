"""Cut a program into stages: each runs in a process of its own, and gives one value to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from headrace.errors import UsageError
from headrace.ops.value import Value
from headrace.program.program import Instruction, Program
from headrace.program.verify import verify

BytesOf = Callable[[Value], int]
"""Bytes of a weight, or of a cache's or a state's memory."""


def stage_cuts(program: Program, count: int, bytes_of: BytesOf) -> tuple[int, ...]:
    """Where to cut a fused program into `count` stages, as indices of instructions, so that the largest
    stage has as few bytes as can be; UsageError where it has too few places.

    A weight that several stages use is in each of them.
    """
    places = [0, *_places(program), len(program.instructions)]
    if count > len(places) - 1:
        raise UsageError(
            f"pp is {count}, and the model can be cut into {len(places) - 1} stages at most: lower it",
            param="pp",
        )
    costs = _costs(program, places, bytes_of)
    last = len(places) - 1
    # best[i]: the smallest largest stage of what is before places[i], and where its last stage begins.
    best = [(costs[0][i], 0) for i in range(last + 1)]
    begins: list[list[int]] = []
    for stages in range(2, count + 1):
        found = [(0, 0)] * (last + 1)
        for end in range(stages, last + 1):
            found[end] = min((max(best[at][0], costs[at][end]), at) for at in range(stages - 1, end))
        best = found
        begins.append([at for _, at in best])
    cuts: list[int] = []
    end = last
    for row in reversed(begins):
        end = row[end]
        cuts.append(places[end])
    return tuple(reversed(cuts))


def split(program: Program, cuts: Sequence[int]) -> tuple[Program, ...]:
    """The stages of a fused program. Their instructions are its own, so that they compute the same bits."""
    bounds = [0, *cuts, len(program.instructions)]
    values = [_live(program, cut) for cut in cuts]
    stages: list[Program] = []
    for index, (begin, end) in enumerate(pairwise(bounds)):
        own = program.instructions[begin:end]
        used = {value for one in own for value in _operands(one)}
        stage = replace(
            program,
            instructions=own,
            weights={name: value for name, value in program.weights.items() if value in used},
            constants={value: data for value, data in program.constants.items() if value in used},
            caches=tuple(cache for cache in program.caches if cache in used),
            states=tuple(state for state in program.states if state in used),
            inputs=tuple(values[index - 1]) if index else (),
            output=values[index][0] if index < len(values) else program.output,
        )
        stages.append(verify(stage))
    return tuple(stages)


def _operands(instruction: Instruction) -> set[Value]:
    return {value for part in instruction.expand() for value in part.inputs if value is not None}


def _live(program: Program, cut: int) -> list[Value]:
    """Values that are made before an instruction, and read there or later."""
    later = {value for one in program.instructions[cut:] for value in one.inputs}
    made = [value for one in program.instructions[:cut] for value in one.outputs]
    return [value for value in made if value in later or value is program.output]


def _places(program: Program) -> list[int]:
    """Where one value alone is live, and no cache or state is used on both sides."""
    count = len(program.instructions)
    first: dict[Value, int] = {}
    last: dict[Value, int] = {program.output: count}
    for index, instruction in enumerate(program.instructions):
        kept = {value for value in _operands(instruction) if value.kind == "state"}
        for value in (*instruction.outputs, *kept):
            first.setdefault(value, index)
        read = {value for value in instruction.inputs if value is not None and value.kind == "temp"}
        for value in (*read, *kept):
            last[value] = max(last.get(value, 0), index)
    live, alive = [0] * (count + 1), [0] * (count + 1)
    for value, begin in first.items():
        for place in range(begin + 1, last.get(value, begin) + 1):
            (alive if value.kind == "state" else live)[place] += 1
    return [place for place in range(1, count) if live[place] == 1 and not alive[place]]


def _costs(program: Program, places: Sequence[int], bytes_of: BytesOf) -> list[list[int]]:
    """costs[i][j]: bytes of a stage from places[i] to places[j]."""
    kinds = ("weight", "state")
    used = [
        {value for one in program.instructions[begin:end] for value in _operands(one) if value.kind in kinds}
        for begin, end in pairwise(places)
    ]
    costs = [[0] * len(places) for _ in places]
    for i in range(len(places)):
        seen: set[Value] = set()
        total = 0
        for j in range(i + 1, len(places)):
            fresh = used[j - 1] - seen
            total += sum(map(bytes_of, fresh))
            seen |= fresh
            costs[i][j] = total
    return costs
