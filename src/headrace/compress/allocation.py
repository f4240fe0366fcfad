"""Mixed precision: which matrices get more bits than the others, under a budget, by what they lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from msgspec import Struct

from headrace.compress.gptq import Moments, product_loss
from headrace.errors import UsageError
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quant_types.block_type import Floats
from headrace.weights.quantize import quantize
from headrace.weights.tensor_output import TensorOutput

FINER = ("Q6_K", "Q8_0")
"""Of which a matrix may get one instead of its own type."""
MOST_BITS = 16
"""Those of rows that fit no type."""


class MatrixCandidate(Struct, frozen=True):
    """A matrix of `count` numbers; `losses` by type are shares of its products' squares, that of its own type
    first."""

    count: int
    losses: Mapping[str, float]


def losses_of(weight: Floats, moments: Moments, own: str) -> MatrixCandidate:
    """What a matrix [n, k] loses in its own type and in finer ones, each number to the nearest."""
    kinds = [
        own,
        *(kind for kind in FINER if kind != own and weight.shape[1] % BY_NAME[kind].block_size == 0),
    ]
    losses: dict[str, float] = {}
    for kind in kinds:
        data = quantize(kind, weight)
        values = dequantize(BY_NAME[kind], data.reshape(-1)).reshape(weight.shape)
        losses[kind] = product_loss(weight, values, moments)
    return MatrixCandidate(weight.size, losses)


def mean_bits(outputs: Sequence[TensorOutput]) -> float:
    """Of a weight of the matrices in a file, token table and output included."""
    matrices = [one for one in outputs if len(one.shape) > 1]
    return 8 * sum(one.nbytes for one in matrices) / sum(prod(one.shape) for one in matrices)


def choose(
    candidates: Mapping[str, MatrixCandidate], budget_bits: float, least_bits: float, count: int
) -> dict[str, str]:
    """The types of matrices that get more bits: whatever saves most loss per bit first, while `count` numbers
    have `budget_bits` in the mean. UsageError where they have more already (`least_bits`), or where no type
    has as many."""
    if not least_bits <= budget_bits < np.inf:
        raise UsageError(
            f"--bits {budget_bits:g} is less than the {least_bits:.2f} that this type takes, token table and"
            f" output included: use --bits {least_bits + 0.2:.1f} or more",
            param="bits",
        )
    if budget_bits > MOST_BITS:
        raise UsageError(
            f"--bits {budget_bits:g} is more than {MOST_BITS}, which no type has: --to q8_0 has about 8.5",
            param="bits",
        )
    chosen: dict[str, str] = {}
    room = (budget_bits - least_bits) * count
    while True:
        steps = [
            (gain / cost, name, kind, cost)
            for name, one in candidates.items()
            for kind, gain, cost in _steps(one, chosen.get(name, next(iter(one.losses))))
            if cost <= room
        ]
        if not steps:
            return chosen
        _, name, kind, cost = max(steps)
        chosen[name] = kind
        room -= cost


def _steps(one: MatrixCandidate, now: str) -> list[tuple[str, float, float]]:
    """Finer types, what each saves, and its bits in all."""
    found: list[tuple[str, float, float]] = []
    for kind, loss in one.losses.items():
        cost = (_bits(kind) - _bits(now)) * one.count
        if cost > 0 and loss < one.losses[now]:
            found.append((kind, one.losses[now] - loss, cost))
    return found


def _bits(kind: str) -> float:
    return 8 * BY_NAME[kind].block_bytes / BY_NAME[kind].block_size
