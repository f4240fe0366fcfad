"""A program that is split over ranks: nothing is left out, all ranks agree, and none is overtaken."""

from __future__ import annotations

from itertools import permutations

import pytest

from golden import load_golden
from headrace.errors import UnsupportedModel
from headrace.ops.value import Value
from headrace.program.fuse import fuse
from headrace.program.plan import plan_shared_arena
from headrace.program.program import Program
from headrace.program.shares import ProgramShare, share_of

SIZES = {"max_tokens": 40, "max_rows": 8}
NAMES = [
    "gemma2",
    "gpt2",
    "gpt_neox",
    "gpt_neox_serial",
    "granite",
    "llama2",
    "llama3",
    "llama_bias",
    "llama_head_dim",
    "llama_linear",
    "mistral_window",
    "olmo2",
    "phi3",
    "phi3_longrope",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "smollm3_window",
    "starcoder2",
]
REFUSED = {
    "deepseek_v3": "one latent row",
    "mamba2": "recurrent states",
    "mixtral": "a mixture of experts",
    "falcon": "1 KV heads, which must divide by it: use 1$",
}


def shares(name: str, ranks: int) -> list[ProgramShare]:
    program = fuse(load_golden(name).program)
    return [share_of(program, rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("name", NAMES)
def test_ranks_have_all_of_a_program(name: str) -> None:
    found = shares(name, 2)
    whole = fuse(load_golden(name).program)
    for tensor, value in whole.weights.items():
        rows = [share.rows[tensor] for share in found if tensor in share.rows]
        for share in found:
            own = share.program.weights[tensor].shape
            split = share.rows.get(tensor)
            assert own == (value.shape if split is None else (split.count, *value.shape[1:]))
        if rows:
            assert [0, *(one.first + one.count for one in rows)] == [
                *(one.first for one in rows),
                value.shape[0],
            ]
    split = {tensor for tensor in whole.weights if tensor in found[0].rows}
    assert split >= {t for t, v in whole.weights.items() if len(v.shape) == 2 and "wpe" not in t}
    for share in found:
        names = [one.name for one in share.program.instructions]
        assert names == [one.name for one in found[0].program.instructions]
        kept = [one for one in names if one not in ("all_gather", "slice_columns")]
        assert kept == [one.name for one in whole.instructions]
        assert share.program.output.shape == whole.output.shape
        assert fuse(share.program).instructions == share.program.instructions
        for cache, own, first in zip(whole.caches, share.program.caches, share.keys, strict=True):
            assert [2 * int(size) for size in own.shape[1:]] == [int(size) for size in cache.shape[1:]]
            assert first in (0, own.shape[1])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_gathered_over_what_another_rank_still_reads(name: str) -> None:
    found = shares(name, 2)
    plans = [plan_shared_arena(share.program, **SIZES) for share in found]
    places = [sorted((p.offset, p.nbytes) for p in plan.placements.values()) for plan in plans]
    assert places[0] == places[1]
    program, plan = found[0].program, plans[0]
    born, read = lives(program)
    meetings = [
        index
        for index, one in enumerate(program.instructions)
        if one.name == "all_gather"
        and (index + 1 == len(program.instructions) or program.instructions[index + 1].name != "all_gather")
    ]
    for old, new in permutations(plan.placements, 2):
        a, b = plan.placements[old], plan.placements[new]
        if born[old] < born[new] and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes:
            assert any(read[old] < at < born[new] for at in meetings), (old, new)


def lives(program: Program) -> tuple[dict[Value, int], dict[Value, int]]:
    born: dict[Value, int] = {}
    read: dict[Value, int] = {program.output: len(program.instructions)}
    for index, one in enumerate(program.instructions):
        born |= dict.fromkeys(one.outputs, index)
        for value in one.inputs:
            if value is not None:
                read[value] = max(read.get(value, 0), index)
    return born, read


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_split_is_named(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=REFUSED[name]):
        share_of(fuse(load_golden(name).program), 0, 2)


def test_the_numbers_that_would_do_are_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"is 3, and the model has 4 KV heads, .* use 1, 2, 4"):
        share_of(fuse(load_golden("llama2").program), 0, 3)
