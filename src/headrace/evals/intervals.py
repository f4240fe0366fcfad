"""Means with their 95 % intervals, differences of two models on the same cases, and a judge's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from headrace.errors import InvalidRequest

Z = 1.959964
"""Of a normal distribution 95 % are within so many standard deviations."""
LEAST_LABELS = 10
"""By which a judge is corrected."""


class Interval(Struct, frozen=True):
    """A mean, and between which values it is with 95 %."""

    mean: float
    low: float
    high: float


class PairedDifference(Struct, frozen=True, kw_only=True):
    """Of two models on the same cases: the mean difference, second less first, with its interval, and in how
    many cases the second was better, the same, or worse."""

    difference: float
    low: float
    high: float
    better: int
    same: int
    worse: int
    is_significant: bool


def mean_interval(scores: Sequence[float]) -> Interval:
    """Of scores from 0 to 1 (Wilson 1927; for scores between them it is wider than needed)."""
    if not scores:
        raise InvalidRequest("there is no score to take the mean of", param="cases")
    n, mean = len(scores), math.fsum(scores) / len(scores)
    middle = (mean + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(max(mean * (1 - mean) / n + Z * Z / (4 * n * n), 0.0))
    return Interval(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))


def compared(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """Two models on the same cases (Agresti and Min 2005: half a case more of each kind)."""
    pairs = [other - one for one, other in zip(first, second, strict=True)]
    if not pairs:
        raise InvalidRequest("there is no case that both models have answered", param="cases")
    n, total = len(pairs) + 2, math.fsum(pairs)
    middle = total / n
    half = Z * math.sqrt(max(math.fsum(one * one for one in pairs) + 1 - total * total / n, 0.0)) / n
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return PairedDifference(
        difference=total / len(pairs),
        low=low,
        high=high,
        better=sum(one > 0 for one in pairs),
        same=sum(one == 0 for one in pairs),
        worse=sum(one < 0 for one in pairs),
        is_significant=low > 0 or high < 0,
    )


def corrected(judged: Sequence[float], labels: Sequence[tuple[float, float]]) -> Interval:
    """The mean of a judge's scores, corrected by `labels`, pairs of a person's score and the judge's of the
    same answer (Angelopoulos et al. 2023, "Prediction-powered inference"). InvalidRequest for few labels."""
    if len(labels) < LEAST_LABELS:
        raise InvalidRequest(
            f"{len(labels):,} answers have labels of a person, {LEAST_LABELS:,} correct a judge: add "
            f"{LEAST_LABELS - len(labels):,}",
            param="labels",
        )
    gaps = [person - judge for person, judge in labels]
    mean = math.fsum(judged) / len(judged) + math.fsum(gaps) / len(gaps)
    half = Z * math.sqrt(_variance(judged) / len(judged) + _variance(gaps) / len(gaps))
    return Interval(min(1.0, max(0.0, mean)), max(0.0, mean - half), min(1.0, mean + half))


def _variance(values: Sequence[float]) -> float:
    """Of a sample, with half a case more on each side: few values that are equal do not show that all are."""
    mean = math.fsum(values) / len(values)
    return (math.fsum((one - mean) ** 2 for one in values) + 0.5) / max(len(values) - 1, 1)
