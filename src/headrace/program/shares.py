"""Split a fused program over ranks: each computes some outputs of every product (tensor parallelism).

No reduction is split, so that every output is computed by the instructions, the kernels and the row counts
of one process, and is the same to the bit. Where whole rows are needed, an `all_gather` brings them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import ProgramError, UnsupportedModel
from headrace.ops.value import Attr, Dim, Value
from headrace.program.exchanges import all_gather, slice_columns
from headrace.program.program import Instruction, Program
from headrace.program.verify import verify

PANEL = 32
"""Outputs that packed weights keep together (kPanel in native/types.hpp): where a product has enough of them,
a rank has whole panels, which are the bytes that they are in one process."""
_PRODUCTS = ("linear", "fused_linear")
_ELEMENTWISE = ("add", "scale", "softcap", "gated_act", "act")
_ON_WHOLE_ROWS = ("rms_norm", "layer_norm", "take_columns")
_BY_HEADS = ("rope_kv_write", "rope", "kv_write", "attend")
_SINKS, _FIRST_BIAS = 5, 6  # of attend's inputs


class RowRange(Struct, frozen=True):
    """Some of `whole` rows of a weight, which are columns of what it makes."""

    first: int
    count: int
    whole: int


class ProgramShare(Struct, frozen=True, eq=False):
    """What one rank runs. `rows` are those that it has of each split weight; `keys` the first of its numbers
    in a token's keys, for each cache."""

    program: Program
    rows: dict[str, RowRange]
    keys: tuple[int, ...]


def share_of(program: Program, rank: int, ranks: int) -> ProgramShare:
    """The share of a rank. UnsupportedModel where the program cannot be split over so many."""
    check_split(program, ranks)
    return _Splitter(program, rank, ranks).share()


def check_split(program: Program, ranks: int) -> None:
    """UnsupportedModel where a program cannot be split over so many ranks."""
    if reason := _unsplit(program):
        raise UnsupportedModel(
            f"tensor_parallel_size is {ranks}, and the model {reason}, which is not split over processes:"
            " leave it out, or use --pp",
            param="tensor_parallel_size",
        )
    counts = [_heads_of(cache, program) for cache in program.caches]
    if any(count % ranks for count in counts):
        most = gcd(*counts)
        good = ", ".join(str(n) for n in range(1, most + 1) if most % n == 0)
        raise UnsupportedModel(
            f"tensor_parallel_size is {ranks}, and the model has {min(counts)} KV heads, which must divide by"
            f" it: use {good}",
            param="tensor_parallel_size",
        )


def shared_values(program: Program) -> set[Value]:
    """Those that all ranks read in memory that they share: what is gathered, and what another stage gives."""
    gathered = {ins.outputs[0] for ins in program.instructions if ins.name == "all_gather"}
    return gathered | set(program.inputs) if gathered else set()


def _unsplit(program: Program) -> str | None:
    """What keeps a program in one process."""
    if program.states:
        return "has recurrent states"
    if any(int(cache.shape[2]) != int(cache.shape[1]) for cache in program.caches):
        return "keeps one latent row for keys and values (MLA)"
    known = {"embed", "linear", "gather", *_ELEMENTWISE, *_ON_WHOLE_ROWS, *_BY_HEADS}
    for part in program.expanded():
        if part.name in ("moe", "route"):
            return "is a mixture of experts"
        if part.name not in known:
            return f"has the operation '{part.name}'"
        if part.name == "attend" and (
            part.attrs.get("ahead") or any(v is not None for v in part.inputs[_FIRST_BIAS:])
        ):
            return "attends as an encoder does, with relative positions or to later tokens"
    return None


def _head_dim(cache: Value, program: Program) -> int:
    for part in program.expanded():
        if part.name == "attend" and cache in part.inputs:
            return int(part.attr("head_dim"))
    raise ProgramError(f"{cache} is never attended to")


def _heads_of(cache: Value, program: Program) -> int:
    return int(cache.shape[1]) // _head_dim(cache, program)


def _heads(program: Program) -> dict[Value, int]:
    """Values whose columns are heads of attention, and how many of them."""
    heads: dict[Value, int] = {}
    for part in reversed(program.expanded()):
        x = part.inputs[0]
        if part.name == "attend":
            assert x is not None
            heads[x] = heads[part.outputs[0]] = int(x.shape[1]) // int(part.attr("head_dim"))
        elif part.name == "kv_write":
            cache = part.inputs[3]
            assert cache is not None
            heads |= {v: _heads_of(cache, program) for v in part.inputs[:2] if v is not None}
        elif part.name in ("rope", "rms_norm", "scale") and part.outputs[0] in heads:
            assert x is not None
            count = heads[part.outputs[0]]
            if part.name != "rms_norm" or _is_of_head(part, count):
                heads[x] = count
    return heads


def _is_of_head(norm: Instruction, heads: int) -> bool:
    """Whether a norm is over the numbers of each head, and not over all heads'."""
    x, weight, *_ = norm.inputs
    assert x is not None and weight is not None
    return int(weight.shape[0]) * heads == int(x.shape[1])


class _Splitter:
    """Rewrites a program instruction by instruction. A value has become a whole one, this rank's columns, or
    both."""

    def __init__(self, program: Program, rank: int, ranks: int) -> None:
        self._program, self._rank, self._ranks = program, rank, ranks
        self._heads = _heads(program)
        self._whole: dict[Value, Value] = {value: value for value in program.inputs}
        self._parts: dict[Value, dict[RowRange, Value]] = {}
        self._rows: dict[str, RowRange | None] = {}
        self._weights: dict[str, Value] = {}
        self._made: list[Instruction] = []
        self._caches = {cache: self._cache(cache) for cache in program.caches}

    def share(self) -> ProgramShare:
        for instruction in self._program.instructions:
            self._split(instruction)
        output = self._as_whole(self._program.output)
        program = replace(
            self._program,
            instructions=tuple(self._made),
            output=output,
            weights=self._weights,
            caches=tuple(self._caches.values()),
        )
        rows = {name: rows for name, rows in self._rows.items() if rows is not None}
        keys = tuple(int(cache.shape[1]) * self._rank for cache in self._caches.values())
        return ProgramShare(verify(program), rows, keys)

    def _split(self, instruction: Instruction) -> None:
        name, x = instruction.name, instruction.inputs[0]
        assert x is not None
        if name in _PRODUCTS:
            self._linear(instruction)
        elif name == "embed":
            self._embed(instruction)
        elif name in _BY_HEADS or (name == "rms_norm" and _is_of_head(instruction, self._heads.get(x, 0))):
            self._by_heads(instruction)
        elif name in _ELEMENTWISE or name == "gather":
            self._elementwise(instruction)
        elif name in _ON_WHOLE_ROWS:
            self._remake(instruction, {})
        else:
            raise ProgramError(f"'{name}' cannot be split over ranks")

    def _linear(self, instruction: Instruction) -> None:
        linears = [part for part in instruction.expand() if part.name == "linear"]
        rows = {linear.outputs[0]: self._columns(linear.outputs[0]) for linear in linears}
        if None in rows.values():  # too few to be split
            self._remake(instruction, {})
            return
        for part in instruction.expand():
            if part.name in ("gated_act", "add"):
                like = rows[linears[0].outputs[0]]
                rows |= dict.fromkeys([*(v for v in part.inputs if v is not None), *part.outputs], like)
        self._remake(instruction, rows)

    def _embed(self, instruction: Instruction) -> None:
        ids, table = instruction.inputs
        assert ids is not None and table is not None
        rows = self._share(int(table.shape[0]))
        if ids.name != "tokens" or rows is None:
            self._remake(instruction, {})
            return
        [output] = instruction.outputs
        own = _like(output, output.shape)
        self._made.append(replace(instruction, inputs=(ids, self._weight(table, rows)), outputs=(own,)))
        self._all_gather(output, own, 0)

    def _by_heads(self, instruction: Instruction) -> None:
        values = {v for part in instruction.expand() for v in (*part.inputs, *part.outputs) if v is not None}
        temps = {value for value in values if value.kind == "temp"}
        if not temps <= set(self._heads):
            raise ProgramError(f"'{instruction.name}' works on heads that nothing attends to")
        self._remake(instruction, {value: self._columns(value) for value in temps})

    def _elementwise(self, instruction: Instruction) -> None:
        """On this rank's columns where it has those of an input, and otherwise on whole rows."""
        temps = [v for v in instruction.inputs if v is not None and v.kind == "temp"]
        rows = next((next(iter(self._parts[v])) for v in temps if v not in self._whole), None)
        if rows is None and instruction.name != "gather":
            rows = next((next(iter(self._parts[v])) for v in temps if v in self._parts), None)
        self._remake(instruction, dict.fromkeys([*temps, *instruction.outputs], rows))

    def _remake(self, instruction: Instruction, rows: Mapping[Value, RowRange | None]) -> None:
        """The same instruction on this rank's columns of the values in `rows`, and on whole others."""
        local: dict[Value, Value] = {}
        parts: list[Instruction] = []
        for part in instruction.expand():
            inputs = tuple(
                local[value] if value in local else self._input(instruction, part, place, rows)
                for place, value in enumerate(part.inputs)
            )
            for value in part.outputs:
                of = rows.get(value)
                local[value] = _like(value, value.shape if of is None else (value.shape[0], of.count))
            parts.append(replace(part, inputs=inputs, outputs=tuple(local[v] for v in part.outputs)))
        outputs = tuple(local[value] for value in instruction.outputs)
        if instruction.parts:
            made = set(local.values())
            outer = dict.fromkeys(v for part in parts for v in part.inputs if v is not None and v not in made)
            self._made.append(replace(instruction, inputs=tuple(outer), outputs=outputs, parts=tuple(parts)))
        else:
            self._made.append(parts[0])
        for value, new in zip(instruction.outputs, outputs, strict=True):
            of = rows.get(value)
            if of is None:
                self._whole[value] = new
            else:
                self._parts[value] = {of: new}

    def _input(
        self, instruction: Instruction, part: Instruction, place: int, rows: Mapping[Value, RowRange | None]
    ) -> Value | None:
        value = part.inputs[place]
        if value is None or value.kind in ("input", "constant"):
            return value
        if value.kind == "state":
            return self._caches[value]
        if value.kind == "weight":
            if part.name == "linear":
                return self._weight(value, rows.get(part.outputs[0]))
            is_sinks = part.name == "attend" and place == _SINKS
            return self._weight(value, self._share(int(value.shape[0]), 1) if is_sinks else None)
        is_multiplied = instruction.name in _PRODUCTS and part.name in ("linear", "rms_norm")
        of = None if is_multiplied else rows.get(value)
        return self._as_whole(value) if of is None else self._as_part(value, of)

    def _as_whole(self, value: Value) -> Value:
        if value not in self._whole:
            rows, part = next(iter(self._parts[value].items()))
            self._all_gather(value, part, rows.first)
        return self._whole[value]

    def _all_gather(self, value: Value, part: Value, first: int) -> None:
        self._whole[value] = whole = _like(value, value.shape)
        attrs: dict[str, Attr] = {"first": first, "columns": int(value.shape[1])}
        self._made.append(Instruction("all_gather", (part,), (whole,), attrs, all_gather))

    def _as_part(self, value: Value, rows: RowRange) -> Value:
        parts = self._parts.setdefault(value, {})
        if rows not in parts:
            whole = self._as_whole(value)
            parts[rows] = part = _like(value, (value.shape[0], rows.count))
            attrs: dict[str, Attr] = {"first": rows.first, "columns": rows.count}
            self._made.append(Instruction("slice_columns", (whole,), (part,), attrs, slice_columns))
        return parts[rows]

    def _weight(self, value: Value, rows: RowRange | None) -> Value:
        known = self._rows.setdefault(value.name, rows)
        if known != rows:
            raise UnsupportedModel(
                f"tensor_parallel_size is {self._ranks}, and the model uses tensor {value.name} in ways that"
                " are split differently: leave it out, or use --pp",
                param="tensor_parallel_size",
            )
        if value.name not in self._weights:
            shape = value.shape if rows is None else (rows.count, *value.shape[1:])
            self._weights[value.name] = Value(value.name, shape, "weight", value.recorder)
        return self._weights[value.name]

    def _cache(self, cache: Value) -> Value:
        slots, keys, values = cache.shape
        shape = (slots, int(keys) // self._ranks, int(values) // self._ranks)
        return Value(cache.name, shape, "state", cache.recorder)

    def _columns(self, value: Value) -> RowRange | None:
        """This rank's columns of a value: whole heads, else whole panels where there are enough."""
        total = int(value.shape[1])
        return self._share(total, total // self._heads[value] if value in self._heads else 0)

    def _share(self, total: int, unit: int = 0) -> RowRange | None:
        if total < self._ranks:
            return None
        unit = unit or (PANEL if total >= PANEL * self._ranks else 1)
        units = -(-total // unit)
        first, end = (min(units * r // self._ranks * unit, total) for r in (self._rank, self._rank + 1))
        return RowRange(first, end - first, total)


def _like(value: Value, shape: tuple[Dim, ...]) -> Value:
    return Value(value.name, shape, "temp", value.recorder)
