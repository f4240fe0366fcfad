"""Factors that make keys and queries alike large in every dimension, so that rounding keys costs least.

Rounding a rotated row errs alike in all dimensions, by a share of the row's size. So the expected squared
error of a score is (sum of k_d^2 e_d^2) (sum of q_d^2 / e_d^2) times a constant, for keys times e and queries
divided by e; it is least for e_d^2 = rms(q_d) / rms(k_d) (Cauchy-Schwarz). The factors undo whatever was
moved between the two sides, such as dimensions in which keys are a hundred times larger than in others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.compress.walk import observe
from headrace.errors import UsageError
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.tied_output import config_with_ties
from headrace.models.registry import find_model
from headrace.ops.value import Ints, Value
from headrace.program.program import Instruction
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint_reader import CheckpointReader

_RANGE = 2.0**12
Sums = NDArray[np.float64]


def balance_keys(checkpoint: CheckpointReader, windows: Ints) -> tuple[tuple[float, ...], ...]:
    """Of each cache the factors of its keys. UsageError where keys or queries are no numbers on the text."""
    program = verify(record(find_model(config_with_ties(checkpoint)).define))
    place = {cache: index for index, cache in enumerate(program.caches)}
    keys: list[Any] = [0.0] * len(place)
    queries: list[Any] = [0.0] * len(place)

    def see(instruction: Instruction, of: Callable[[Value], list[Any]]) -> None:
        if instruction.name not in ("kv_write", "attend"):
            return
        rows, cache = instruction.inputs[0], instruction.inputs[3 if instruction.name == "kv_write" else 1]
        assert rows is not None and cache is not None
        squares, index = sum(_squares(window) for window in of(rows)), place[cache]
        if instruction.name == "kv_write":
            keys[index] = squares
        else:
            dim = instruction.attr("head_dim")
            of_heads = np.reshape(squares, (int(cache.shape[1]) // dim, -1, dim)).sum(axis=1)
            queries[index] = queries[index] + of_heads.reshape(-1)

    observe(program, ProgramWeights(checkpoint, program), windows, see)
    return tuple(
        factors_of(k, q, int(cache.shape[1]))
        for k, q, cache in zip(keys, queries, program.caches, strict=True)
    )


def factors_of(keys: Sums, queries: Sums, width: int) -> tuple[float, ...]:
    """From sums of squares of each number of a cache's keys, and of all queries that read it."""
    if not (np.isfinite(keys).all() and np.isfinite(queries).all()):
        raise UsageError(
            "keys or queries overflow on the calibration text: take another text", param="calibrate"
        )
    used = (keys > 0) & (queries > 0)
    ratio = np.where(used, queries, 1.0) / np.where(used, keys, 1.0)
    factors = np.where(used, ratio**0.25, 0.0)
    middle = np.exp(np.log(factors[used]).mean()) if used.any() else 1.0
    factors = np.clip(np.where(used, factors / middle, 1.0), 1 / _RANGE, _RANGE)
    assert factors.shape == (width,)
    return tuple(float(f"{factor:.5g}") for factor in factors)


def _squares(rows: Any) -> Sums:
    return np.square(rows.astype(np.float64)).sum(axis=0)
