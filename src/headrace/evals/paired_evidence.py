"""Whether a student is as good as what answers today, looked at after every example, for ever.

Each example is a pair: `better` where the student alone was right, `worse` where it alone was wrong, `same`
otherwise. A bettor's capital grows only where the mean difference is above -`margin` (Waudby-Smith and Ramdas
2024, "Estimating means of bounded random variables by betting", JRSS B; Ville 1939). For a student at the
bound it ever reaches 1 / `alpha` with a probability of at most `alpha`, whenever one looks and stops.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import InvalidRequest

BETS = tuple(place / 31 for place in range(1, 31))
"""Parts of the largest bet that is allowed. The capital is spread evenly over all of them."""
Counts = NDArray[np.int64]
Standing = Literal["open", "ready", "inferior"]


class PairCounts(Struct, frozen=True):
    """Examples of each kind."""

    better: int = 0
    same: int = 0
    worse: int = 0

    @property
    def by_kind(self) -> dict[float, int]:
        """How many there are of each difference."""
        return {1.0: self.better, 0.0: self.same, -1.0: self.worse}

    @property
    def total(self) -> int:
        """All of them."""
        return self.better + self.same + self.worse

    @property
    def difference(self) -> float:
        """The mean difference, student less incumbent; 0 before the first example."""
        return (self.better - self.worse) / self.total if self.total else 0.0

    def with_pair(self, difference: int) -> PairCounts:
        """The counts with one more: 1 better, 0 same, -1 worse."""
        return PairCounts(
            self.better + (difference > 0), self.same + (difference == 0), self.worse + (difference < 0)
        )


def _payoffs(bound: float, kinds: Sequence[float] = (1, 0, -1)) -> list[list[float]]:
    """Of each bet the logarithms of what it pays for each of the differences `kinds`, from -1 to 1.

    A bet of b pays 1 + b (d - bound): never less than 0 up to b = 1 / (1 + bound).
    """
    most = 1 / (1 + bound)
    return [[math.log1p(part * most * (kind - bound)) for kind in kinds] for part in BETS]


def capital_of(counts: Mapping[float, int], bound: float) -> float:
    """What a capital of 1 has become that was bet on a mean above `bound`, -1 < bound < 1, of so many values
    of each size from -1 to 1. It falls with the bound."""
    numbers = list(counts.values())
    logs = [sum(map(operator.mul, numbers, one)) for one in _payoffs(bound, list(counts))]
    return math.fsum(math.exp(min(one, 700.0)) for one in logs) / len(logs)


def capital(counts: PairCounts, bound: float) -> float:
    """The same of pairs."""
    return capital_of(counts.by_kind, bound)


def turned(counts: PairCounts) -> PairCounts:
    """The same examples with the roles of student and incumbent exchanged."""
    return PairCounts(counts.worse, counts.same, counts.better)


def standing(counts: PairCounts, margin: float, alpha: float) -> Standing:
    """What the examples say by now. The first answer besides "open" is final: one who goes on looking after
    it keeps it."""
    if capital(counts, -margin) >= 1 / alpha:
        return "ready"
    return "inferior" if capital(turned(counts), margin) >= 1 / alpha else "open"


def lower_bound_of(counts: Mapping[float, int], alpha: float) -> float:
    """The mean of the values is above this, with confidence 1 - `alpha`, whenever one looks."""
    sizes, numbers = np.array(list(counts)), np.array(list(counts.values()))
    low, high, bets = -1.0, 1.0, np.array(BETS)[:, None]
    for _ in range(40):
        middle = (low + high) / 2
        logs = np.log1p(bets / (1 + middle) * (sizes - middle)) @ numbers
        if np.exp(np.minimum(logs, 700.0)).mean() >= 1 / alpha:
            low = middle
        else:
            high = middle
    return low


def lower_bound(counts: PairCounts, alpha: float) -> float:
    """The mean difference is above this, with confidence 1 - `alpha`, whenever one looks."""
    return lower_bound_of(counts.by_kind, alpha)


def check_bounds(margin: float, alpha: float) -> None:
    """InvalidRequest for a margin or alpha that is none."""
    for name, value in (("margin", margin), ("alpha", alpha)):
        if not 0 < value < 1:
            raise InvalidRequest(f"{name} is {value}, it must be between 0 and 1", param=name)


class Simulated(Struct, frozen=True, kw_only=True):
    """Of simulated students the part that was ever proposed, and after how many examples, by the median of
    those; None where none was."""

    proposed_share: float
    samples_median: float | None


def simulate(
    students: int,
    margin: float,
    alpha: float,
    *,
    better: float | None = None,
    disagreement: float = 0.1,
    examples: int = 5000,
    seed: int = 0,
) -> Simulated:
    """Students that differ from the incumbent on a part `disagreement` of examples, `better` right more often
    than it is (None: by -`margin`, exactly at the bound), looked at after each of `examples`."""
    check_bounds(margin, alpha)
    mean = -margin if better is None else better
    if not abs(mean) <= disagreement <= 1:
        raise InvalidRequest(
            f"disagreement is {disagreement}: students whose difference is {mean:+g} disagree with the "
            f"incumbent on {abs(mean):g} of the examples at least, and on 1 at most",
            param="disagreement",
        )
    if students < 1 or examples < 1:
        raise InvalidRequest("students and examples must be 1 or more", param="students")
    random = np.random.default_rng(seed)
    times: list[int] = []
    for start in range(0, students, 100):
        drawn = random.random((min(100, students - start), examples))
        is_better: Counts = np.cumsum(drawn < (disagreement + mean) / 2, axis=1, dtype=np.int64)
        is_worse: Counts = np.cumsum(drawn >= 1 - (disagreement - mean) / 2, axis=1, dtype=np.int64)
        times += first_crossings(is_better, is_worse, -margin, alpha)
    return Simulated(
        proposed_share=len(times) / students, samples_median=float(np.median(times)) if times else None
    )


def first_crossings(better: Counts, worse: Counts, bound: float, alpha: float) -> list[int]:
    """Of running counts [students, examples] the number of examples at which the capital that is bet on a
    mean difference above `bound` suffices first; students for which it never does are left out."""
    looks: Counts = np.arange(1, better.shape[1] + 1, dtype=np.int64)
    same = cast("Counts", looks - better - worse)
    total = np.zeros(better.shape)
    for one, other, third in _payoffs(bound):
        total += np.exp(np.minimum(better * one + same * other + worse * third, 700.0))
    crossed = total / len(BETS) >= 1 / alpha
    ever = crossed.any(1)
    return (crossed.argmax(1)[ever] + 1).tolist()
