"""Whether a student is worse than before, by losses of the same samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError

ALPHA = 0.05
DRAWS = 10_000


class StudentWorse(HeadraceError):
    """The student lost a paired test: it is not written."""

    remedy = "Give more or better data, more time, or a lower --rate."
    exit_code = 1


def worse_probability(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """One-sided p of a sign-flip test: how often the mean would rise as much, were there no difference."""
    differences = after - before
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (DRAWS, len(differences)))
    means = (signs * differences).mean(axis=1)
    return float((1 + (means >= differences.mean()).sum()) / (1 + DRAWS))


def check_better(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """The p of being worse and of being better. StudentWorse where it is worse at ALPHA, or no numbers."""
    if not np.isfinite(after).all():
        raise StudentWorse("the student's losses on held-out samples are no numbers")
    worse, better = worse_probability(before, after), worse_probability(after, before)
    if worse < ALPHA:
        raise StudentWorse(
            f"on {len(after)} held-out samples the student is worse than it was: a loss of {after.mean():.4f}"
            f" instead of {before.mean():.4f} nats (p = {worse:.4f})"
        )
    return worse, better
