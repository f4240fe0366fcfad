"""A program that is cut into stages: nothing is left out, and nothing changes."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest

from golden import NAMES, load_golden
from headrace.errors import UsageError
from headrace.ops.value import Value
from headrace.program.fuse import fuse
from headrace.program.stages import split, stage_cuts


def numbers(value: Value) -> int:
    return prod(size for size in value.shape if isinstance(size, int))


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_the_program(name: str) -> None:
    program = fuse(load_golden(name).program)
    for count in (2, 3):
        stages = split(program, stage_cuts(program, count, numbers))
        assert len(stages) == count
        assert [one for stage in stages for one in stage.instructions] == list(program.instructions)
        for before, stage in pairwise(stages):
            assert stage.inputs == (before.output,)
        for stage in stages:
            assert stage.instructions
            assert fuse(stage).instructions == stage.instructions  # an executor changes nothing either
        assert [one for stage in stages for one in stage.caches] == list(program.caches)
        assert {one for stage in stages for one in stage.states} == set(program.states)
        assert {one for stage in stages for one in stage.weights} == set(program.weights)


def test_the_largest_stage_is_as_small_as_can_be() -> None:
    program = fuse(load_golden("llama3").program)
    sizes = dict.fromkeys(program.weights.values(), 1)
    layer = next(value for value in program.weights.values() if "layers.0.mlp.down" in value.name)
    sizes[layer] = 1000
    stages = split(program, stage_cuts(program, 3, lambda value: sizes.get(value, 0)))
    heavy = next(stage for stage in stages if layer.name in stage.weights)
    others = [stage for stage in stages if stage is not heavy]
    assert len(heavy.weights) < min(map(len, (stage.weights for stage in others)))


def test_too_many_stages_are_refused() -> None:
    program = fuse(load_golden("llama3").program)
    with pytest.raises(UsageError, match=r"pp is 60, and the model can be cut into \d+ stages at most"):
        stage_cuts(program, 60, numbers)
