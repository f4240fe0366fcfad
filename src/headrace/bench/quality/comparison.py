"""Compares two models' distributions, token by token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.bench.quality.next_token_model import Logs
from headrace.errors import UsageError
from headrace.ops.value import Ints

_LEAST = -16.0
"""Natural log of a probability below which the reference's share of a divergence is no longer counted;
llama.cpp does the same."""


class DistributionScores(Struct, frozen=True, eq=False):
    """Of each scored position [n] of a window: the divergence KL(reference || model) in nats, negative log
    likelihoods of the token that follows, whether the most likely tokens agree."""

    kl: NDArray[np.float64]
    loss: NDArray[np.float64]
    reference_loss: NDArray[np.float64]
    agrees: NDArray[np.bool_]


def compare(reference: Iterable[Logs], model: Iterable[Logs], following: Ints) -> DistributionScores:
    """Scores of one window whose scored positions are followed by the tokens `following` [n].

    UsageError where a model's probabilities are no numbers.
    """
    parts: list[DistributionScores] = []
    at = 0
    for own, other in _aligned(reference, model):
        tokens = following[at : at + len(own)]
        parts.append(_block(own, other, tokens))
        at += len(own)
    return joined(parts)


def joined(parts: list[DistributionScores]) -> DistributionScores:
    """One after the other."""
    return DistributionScores(
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.loss for part in parts]),
        np.concatenate([part.reference_loss for part in parts]),
        np.concatenate([part.agrees for part in parts]),
    )


def _block(own: Logs, other: Logs, tokens: Ints) -> DistributionScores:
    if not (np.isfinite(own.max()) and np.isfinite(other.max())):
        raise UsageError(
            "the probabilities are not all numbers: a model's weights or activations overflow; name another"
            " type with --quantization or --kv-cache-dtype"
        )
    with np.errstate(invalid="ignore"):  # an impossible token of both has infinite logs
        terms = np.where(own > _LEAST, np.exp(own) * (own - other), 0.0)
    rows = np.arange(len(tokens))
    return DistributionScores(
        kl=terms.sum(axis=1),
        loss=-other[rows, tokens],
        reference_loss=-own[rows, tokens],
        agrees=own.argmax(axis=1) == other.argmax(axis=1),
    )


def _aligned(one: Iterable[Logs], other: Iterable[Logs]) -> Iterable[tuple[Logs, Logs]]:
    """Blocks of both with as many rows each, however each of them is cut."""
    left, right = iter(one), iter(other)
    a = b = np.empty((0, 0))
    while True:
        a = next(left, None) if not len(a) else a
        b = next(right, None) if not len(b) else b
        if a is None or b is None:
            return
        count = min(len(a), len(b))
        yield a[:count], b[:count]
        a, b = a[count:], b[count:]
