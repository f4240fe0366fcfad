"""Fuse instructions for the native executor; a fused instruction is defined by its parts.

Two fusions reduce a decoder layer to six native instructions, and one saves memory in the head of SPLADE:
- fused_linear: [rms_norm] + linears that share its output + [gated_act | residual add];
- rope_kv_write: [head norms] + rope of q and k + kv_write;
- max_linear: linear + pooling of the maximum, without the product of all rows.
Pure parts may move up to the position of the first part, but never across an effect.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.ops.value import Dim, Value
from headrace.program.program import Instruction, Program
from headrace.program.verify import verify

MAX_LINEARS = 4  # weights per fused_linear (kMaxLinears in native/kernels/arguments.hpp)


def fuse(program: Program) -> Program:
    """The same program with fused instructions, verified after each pass."""
    return verify(_fuse_rope_kv_write(verify(_fuse_linears(verify(_fuse_max_linears(program))))))


class _Uses:
    """Producer and readers of each value in an instruction list."""

    def __init__(self, program: Program) -> None:
        self.place = {id(ins): i for i, ins in enumerate(program.instructions)}
        self.maker: dict[Value, Instruction] = {}
        self.readers: dict[Value, list[Instruction]] = {program.output: []}
        for instruction in program.instructions:
            for value in instruction.outputs:
                self.maker[value] = instruction
            for value in instruction.inputs:
                if value is not None:
                    self.readers.setdefault(value, []).append(instruction)
        self.output = program.output
        self.effects = [i for i, ins in enumerate(program.instructions) if ins.writes is not None]

    def only_reader(self, value: Value) -> Instruction | None:
        """The only instruction that reads a value; None if several do or if it is the output."""
        readers = self.readers.get(value, [])
        return readers[0] if len(readers) == 1 and value is not self.output else None

    def made_before(self, value: Value, place: int) -> bool:
        return value not in self.maker or self.place[id(self.maker[value])] < place

    def crosses_effect(self, first: Instruction, last: Instruction) -> bool:
        low, high = self.place[id(first)], self.place[id(last)]
        return any(low <= effect <= high for effect in self.effects)


def _fuse_linears(program: Program) -> Program:
    uses = _Uses(program)
    groups: dict[int, Instruction] = {}  # index of the first linear -> fused instruction
    taken: set[int] = set()
    for instruction in program.instructions:
        if instruction.name != "linear" or id(instruction) in taken:
            continue
        parts = _linear_group(instruction, uses, taken)
        taken |= {id(part) for part in parts}
        groups[uses.place[id(instruction)]] = _fused("fused_linear", parts, uses)
    return _rebuilt(program, groups, taken)


def _linear_group(first: Instruction, uses: _Uses, taken: set[int]) -> list[Instruction]:
    x = first.inputs[0]
    assert x is not None
    linears = [
        reader
        for reader in uses.readers[x]
        if reader.name == "linear"
        and id(reader) not in taken
        and not uses.crosses_effect(first, reader)
        and _is_router(reader, uses) == _is_router(first, uses)
    ][:MAX_LINEARS]
    parts = list(linears)
    norm = uses.maker.get(x)
    if norm is not None and norm.name == "rms_norm" and id(norm) not in taken:
        whole_row = _norm_width(norm) == x.shape[1]
        if whole_row and len(uses.readers[x]) == len(linears) and not uses.crosses_effect(norm, first):
            parts.insert(0, norm)
    tail = _linear_tail(linears, uses)
    return [*parts, tail] if tail is not None else parts


def _is_router(linear: Instruction, uses: _Uses) -> bool:
    """Routers are not fused: shared experts read the same rows and keep their fused activation."""
    reader = uses.only_reader(linear.outputs[0])
    return reader is not None and reader.name == "route"


def _linear_tail(linears: list[Instruction], uses: _Uses) -> Instruction | None:
    """The activation of a gate and up pair, or the residual add after a single linear."""
    readers = [uses.only_reader(linear.outputs[0]) for linear in linears]
    tail = readers[0]
    if tail is None or any(reader is not tail for reader in readers):
        return None
    made = tuple(linear.outputs[0] for linear in linears)
    if tail.name == "gated_act" and tail.inputs == made:
        return tail if not uses.crosses_effect(linears[0], tail) else None
    if tail.name == "add" and len(linears) == 1:
        residual = tail.inputs[0] if tail.inputs[1] is made[0] else tail.inputs[1]
        place = uses.place[id(linears[0])]
        if residual is not None and residual is not made[0] and uses.made_before(residual, place):
            return tail if not uses.crosses_effect(linears[0], tail) else None
    return None


def _fuse_max_linears(program: Program) -> Program:
    uses = _Uses(program)
    groups: dict[int, Instruction] = {}
    taken: set[int] = set()
    for instruction in program.instructions:
        pooled = uses.only_reader(instruction.outputs[0]) if instruction.name == "linear" else None
        if pooled is None or pooled.name != "pool" or pooled.attrs.get("kind") != "max":
            continue
        if not uses.crosses_effect(instruction, pooled):
            taken |= {id(instruction), id(pooled)}
            groups[uses.place[id(instruction)]] = _fused("max_linear", [instruction, pooled], uses)
    return _rebuilt(program, groups, taken)


def _fuse_rope_kv_write(program: Program) -> Program:
    uses = _Uses(program)
    groups: dict[int, Instruction] = {}
    taken: set[int] = set()
    for instruction in program.instructions:
        if instruction.name != "kv_write":
            continue
        parts = _rope_group(instruction, uses)
        if parts is not None:
            taken |= {id(part) for part in parts}
            groups[uses.place[id(instruction)]] = _fused("rope_kv_write", parts, uses)
    return _rebuilt(program, groups, taken)


def _rope_group(write: Instruction, uses: _Uses) -> list[Instruction] | None:
    cache = write.inputs[3]
    assert cache is not None
    # Layers may share a cache if they use it one after the other.
    later = (r for r in uses.readers[cache] if uses.place[id(r)] > uses.place[id(write)])
    attend = next((r for r in later if r.name == "attend"), None)
    k, q = write.inputs[0], attend.inputs[0] if attend is not None else None
    if k is None or q is None:
        return None
    q_chain, k_chain = _rope_chain(q, uses), _rope_chain(k, uses)
    if q_chain is None or k_chain is None:
        return None
    rope_q, rope_k = q_chain[-1], k_chain[-1]
    if rope_q.inputs[1:] != rope_k.inputs[1:] or rope_q.attrs != rope_k.attrs:
        return None
    if len(q_chain) != len(k_chain) or q_chain[0].attrs != k_chain[0].attrs:
        q_chain, k_chain = [rope_q], [rope_k]  # fuse head norms only if q and k have the same
    parts = [*q_chain, *k_chain, write]
    first = min(parts, key=lambda part: uses.place[id(part)])
    earlier_effects = [e for e in uses.effects if uses.place[id(first)] <= e < uses.place[id(write)]]
    return None if earlier_effects else parts


def _rope_chain(value: Value, uses: _Uses) -> list[Instruction] | None:
    """The chain [head norm,] rope that produces a value with no other reader."""
    rope = uses.maker.get(value)
    if rope is None or rope.name != "rope" or uses.only_reader(value) is None:
        return None
    before = rope.inputs[0]
    norm = uses.maker.get(before) if before is not None else None
    if norm is None or norm.name != "rms_norm" or before is None or uses.only_reader(before) is None:
        return [rope]
    return [norm, rope] if _norm_width(norm) == rope.attrs["head_dim"] else [rope]


def _norm_width(norm: Instruction) -> Dim:
    """Number of entries that are normed together."""
    weight = norm.inputs[1]
    assert weight is not None
    return weight.shape[0] if norm.attrs.get("runs", 1) == 1 else 0


def _fused(name: str, parts: list[Instruction], uses: _Uses) -> Instruction:
    """One instruction for the parts, with their external inputs and the outputs that others read."""
    inside = {id(part) for part in parts}
    made = [v for part in parts for v in part.outputs]
    taken = dict.fromkeys(v for part in parts for v in part.inputs if v is not None and v not in made)
    shown = [
        v
        for v in made
        if v is uses.output or any(id(reader) not in inside for reader in uses.readers.get(v, []))
    ]
    return Instruction(name, tuple(taken), tuple(shown), parts=tuple(parts))


def _rebuilt(program: Program, groups: dict[int, Instruction], taken: set[int]) -> Program:
    instructions: list[Instruction] = []
    for place, instruction in enumerate(program.instructions):
        if place in groups:
            instructions.append(groups[place])
        elif id(instruction) not in taken:
            instructions.append(instruction)
    return replace(program, instructions=tuple(instructions))
