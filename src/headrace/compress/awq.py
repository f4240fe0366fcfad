"""AWQ: inputs that are large get larger weights, so that rounding errs less where it matters.

Lin et al. 2023, "AWQ: Activation-aware Weight Quantization", section 3.2. The inverse factors go into what
makes the inputs, so that the file is one as any other. Factors are powers of the inputs' root mean squares,
through powers of the weights' own magnitudes or not; of several the one is taken that errs least on the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.compress.calibrate import CalibrationOrder, linear_matrices
from headrace.compress.gptq import Moments, check_finite, weighted
from headrace.compress.grids import Grid, RotatedInt4
from headrace.compress.kept import Kept
from headrace.compress.scaled_checkpoint import ScaledCheckpoint, TensorFactors
from headrace.compress.scaled_inputs import ScaledInput, scaled_inputs
from headrace.compress.walk import walk
from headrace.errors import UsageError
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.tied_output import config_with_ties
from headrace.models.registry import find_model
from headrace.ops.value import Array
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.quantize import to_bf16

EXPONENTS = tuple(step / 10 for step in range(1, 11))
"""Of the inputs' magnitudes."""
SEARCH_ROWS = 128
"""Of each matrix, evenly spaced: rows are rounded alike."""
_LEAST, _MOST = 1e-4, 1e4
"""A factor outside of these says more about a channel that is dead than about rounding."""


class Scaled(Struct, frozen=True):
    """The scaled checkpoint; the rows' bytes of each rounded matrix by name; those of them whose inputs could
    not be scaled; those that have no inputs of their own, such as those of experts."""

    checkpoint: ScaledCheckpoint
    ready: dict[str, Bytes]
    unscaled: tuple[str, ...]
    left: tuple[str, ...]


def awq(
    checkpoint: CheckpointReader, order: CalibrationOrder, progress: Callable[[int, int], None]
) -> Scaled:
    """Scale and round every matrix that a linear layer has and that `order` gives a grid. UsageError where
    the text has too few tokens; CorruptFile where weights or inputs are no finite numbers."""
    order.check()
    program = verify(record(find_model(config_with_ties(checkpoint)).define))
    wanted = _plain_grids(order.grids(checkpoint))
    targets = linear_matrices(program, set(wanted))
    inputs = [one for one in scaled_inputs(program) if not targets.isdisjoint(one.matrices)]
    first = {one.matrices[0]: one for one in inputs}
    kept = Kept(order.work, b"awq " + order.key(checkpoint.fingerprint))
    seen = {name: arrays for name in {*targets, *first} if (arrays := kept.read(name)) is not None}
    weights, total = ProgramWeights(checkpoint, program), 2 * len(targets)

    def look(name: str, moments: Moments) -> Array:
        progress(len(seen), total)
        values = weights.float32(name)
        check_finite(values, moments, name=name)
        found: dict[str, NDArray[Any]] = {"squares": np.diag(moments).copy()}
        if name in first:
            found["factors"] = _factors(checkpoint, first[name], wanted, moments)
        kept.write(name, found)
        seen[name] = found
        return values

    missing = frozenset({*targets, *first} - seen.keys())
    if missing:
        walk(program, weights, order.windows, missing, look)
    factors = {name: seen[name]["factors"].astype(np.float32) for name in first}
    scaled = ScaledCheckpoint(checkpoint, _scalings(inputs, factors))
    columns = {name: factors[one.matrices[0]][one.channel_of] for one in inputs for name in one.matrices}
    ready: dict[str, Bytes] = {}
    for name in sorted(targets):
        progress(len(targets) + len(ready), total)
        squares = seen[name]["squares"]
        if order.observe is not None:
            order.observe(name, squares)
        importance = (squares / np.square(columns.get(name, np.float32(1)), dtype=np.float64)).astype(
            np.float32
        )
        ready[name] = weighted(scaled.float32(name), importance, wanted[name], name=name).data
    progress(total, total)
    return Scaled(
        scaled, ready, tuple(sorted(targets - columns.keys())), tuple(sorted(set(wanted) - targets))
    )


def _plain_grids(grids: Mapping[str, Grid | RotatedInt4]) -> dict[str, Grid]:
    plain = {name: grid for name, grid in grids.items() if not isinstance(grid, RotatedInt4)}
    if len(plain) < len(grids):
        raise UsageError(
            "AWQ scales inputs, which int4 rotates: use --method gptq, or --to w4a16", param="method"
        )
    return plain


def _scalings(inputs: Sequence[ScaledInput], factors: Mapping[str, Floats]) -> dict[str, TensorFactors]:
    """A matrix may be scaled on both sides."""
    columns = {name: factors[one.matrices[0]][one.channel_of] for one in inputs for name in one.matrices}
    rows = {name: (factors[one.matrices[0]], one.plus) for one in inputs for name in one.producers}
    return {
        name: TensorFactors(columns.get(name), *rows.get(name, (None, 0.0))) for name in {*columns, *rows}
    }


def _factors(
    checkpoint: CheckpointReader, inputs: ScaledInput, grids: Mapping[str, Grid], moments: Moments
) -> Floats:
    """The factors [channels] of an input with second moments [k, k]."""
    matrices = [
        (
            weight[np.linspace(0, len(weight) - 1, min(len(weight), SEARCH_ROWS)).astype(int)],
            grids.get(name),
            name,
        )
        for name in inputs.matrices
        for weight in (checkpoint.float32(name),)
    ]
    norm = checkpoint.float32(inputs.producers[0]) + np.float32(inputs.plus) if inputs.is_norm else None
    best, least = np.ones(inputs.channels, np.float32), np.inf
    for factors in (best, *_candidates([weight for weight, _, _ in matrices], inputs, moments)):
        if norm is not None:
            factors = _storable(norm, factors, inputs.plus)
        loss = sum(
            _loss(weight, factors[inputs.channel_of], moments, grid, name)
            for weight, grid, name in matrices
            if grid is not None
        )
        if loss < least:
            best, least = factors, loss
    return best


def _candidates(weights: Sequence[Floats], inputs: ScaledInput, moments: Moments) -> Iterator[Floats]:
    squares = np.diag(moments)
    count = np.maximum(np.bincount(inputs.channel_of, minlength=inputs.channels), 1)
    of_inputs = np.sqrt(np.bincount(inputs.channel_of, squares, inputs.channels) / count)
    if not of_inputs.any():
        return
    sizes = np.concatenate([np.abs(weight) for weight in weights]).mean(axis=0, dtype=np.float64)
    of_weights = np.bincount(inputs.channel_of, sizes, inputs.channels) / count
    for exponent in EXPONENTS:
        powers = np.maximum(of_inputs, of_inputs.max() * 1e-6) ** exponent
        for factors in (powers, powers / np.maximum(of_weights, 1e-12) ** (1 - exponent)):
            middle = np.exp(np.log(factors).mean())
            yield np.clip(factors / middle, _LEAST, _MOST).astype(np.float32)


def _storable(norm: Floats, factors: Floats, plus: float) -> Floats:
    """Factors near these by which the norm becomes numbers of bf16, as folders have them."""
    wanted = to_bf16((norm / factors - np.float32(plus))[:, None])[1][:, 0] + np.float32(plus)
    is_fit = (np.abs(wanted) > 1e-20) & (np.abs(norm) > 1e-20)
    return np.where(is_fit, norm / np.where(is_fit, wanted, np.float32(1)), np.float32(1)).astype(np.float32)


def _loss(weight: Floats, factors: Floats, moments: Moments, grid: Grid, name: str) -> float:
    """The squared error of the products of a matrix that is rounded with its inputs scaled."""
    importance = (np.diag(moments) / np.square(factors, dtype=np.float64)).astype(np.float32)
    values = weighted(weight * factors, importance, grid, name=name).values / factors
    difference = (values - weight).astype(np.float64)
    return float(((difference @ moments) * difference).sum())
