"""Above which score a small model answers by itself, with a bound on how often it is wrong there.

Learn then Test (Angelopoulos et al. 2021, arXiv:2110.01052) with a fixed sequence of thresholds: these are
given before the labels are seen, from the strictest on. Each is tested with the exact binomial tail; the
first that is not rejected ends the sequence. So the probability that a certified threshold has an error rate
above `risk` is at most 1 - `confidence`, for traffic that is exchangeable with what was labeled. Where
traffic changes, see `drift.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from headrace.errors import InvalidRequest

STEPS = 20
"""Thresholds of a sequence. More find the best one more exactly, and cost nothing in confidence."""


class Certificate(Struct, frozen=True, kw_only=True):
    """From `threshold` on, at most `risk` of the answers are wrong, with `confidence`.

    Of `labeled` examples `answered` had such a score, of which `wrong` were wrong. `upper` is the bound of
    Clopper and Pearson (1934) for their error rate.
    """

    threshold: float
    risk: float
    confidence: float
    labeled: int
    answered: int
    wrong: int
    upper: float

    @property
    def share(self) -> float:
        """The part of the labeled traffic that is answered."""
        return self.answered / self.labeled


def binomial_tail(successes: int, trials: int, rate: float) -> float:
    """P(X <= successes) for X ~ Binomial(trials, rate)."""
    if successes >= trials or rate <= 0:
        return 1.0
    if rate >= 1:
        return 0.0
    log_term = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    log_term += successes * math.log(rate) + (trials - successes) * math.log1p(-rate)
    odds, term, total = (1 - rate) / rate, 1.0, 1.0  # relative to P(X = successes)
    for count in range(successes, 0, -1):
        factor = count / (trials - count + 1) * odds
        term *= factor
        total += term
        if factor < 1 and term < total * 1e-17:  # below the mode they only get smaller
            break
    return min(1.0, math.exp(log_term + math.log(total)))


def upper_bound(wrong: int, count: int, confidence: float) -> float:
    """The upper limit of Clopper and Pearson for a rate of which `wrong` of `count` were seen."""
    if wrong >= count:
        return 1.0
    low, high = wrong / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if binomial_tail(wrong, count, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def least_examples(risk: float, confidence: float) -> int:
    """Answers without any error that it takes to certify `risk`."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-risk))


def thresholds_of(scores: ArrayLike, labeled: int, *, risk: float, confidence: float = 0.95) -> list[float]:
    """A sequence for `labeled` examples, from the scores [texts] of other traffic, which needs no labels.

    The first threshold leaves some twice as many answers as one could certify without any error; the last one
    answers everything.
    """
    values = np.sort(np.asarray(scores, np.float64))[::-1]
    _check(risk, confidence, values)
    first = min(1.0, 2 * least_examples(risk, confidence) / max(labeled, 1))
    shares = np.linspace(first, 1.0, STEPS)
    places = np.minimum((shares * len(values)).astype(int), len(values) - 1)
    return list(dict.fromkeys(values[places].tolist()))


def certify(
    scores: ArrayLike,
    is_wrong: Sequence[bool] | ArrayLike,
    thresholds: Sequence[float],
    *,
    risk: float,
    confidence: float = 0.95,
) -> Certificate | None:
    """The last threshold of the sequence that the examples certify; None where they do not certify the first.

    `scores` and `is_wrong` [examples] are of labeled examples that had no part in choosing `thresholds` nor
    in training. Higher scores are more confident. Raises InvalidRequest for numbers that cannot be.
    """
    values, wrong = np.asarray(scores, np.float64), np.asarray(is_wrong, bool)
    _check(risk, confidence, values)
    if values.shape != wrong.shape:
        raise InvalidRequest(
            f"{len(values):,} scores and {len(wrong):,} labels do not match: give one for each"
        )
    if list(thresholds) != sorted(thresholds, reverse=True):
        raise InvalidRequest("thresholds must descend: the strictest is tested first")
    found: Certificate | None = None
    for threshold in thresholds:
        answered = values >= threshold
        count, errors = int(answered.sum()), int((answered & wrong).sum())
        if not count or binomial_tail(errors, count, risk) > 1 - confidence:
            break
        found = Certificate(
            threshold=float(threshold),
            risk=risk,
            confidence=confidence,
            labeled=len(values),
            answered=count,
            wrong=errors,
            upper=upper_bound(errors, count, confidence),
        )
    return found


def _check(risk: float, confidence: float, scores: np.ndarray) -> None:
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InvalidRequest(f"{name} is {value}, it must be between 0 and 1", param=name)
    if not scores.size or not np.isfinite(scores).all():
        raise InvalidRequest("scores must be finite numbers, one at least", param="scores")
