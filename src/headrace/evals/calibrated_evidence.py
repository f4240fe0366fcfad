"""The test of students where a judge compares answers: people's labels say how far the judge can be trusted.

What is asked is whether people prefer the student's answers. Let y be what people say of a pair, 1, 0 or -1,
and j what the judge says. Then E[y] = E[w j] + E[y - w j] for any weight w. The second part is bounded from
below by labels, the first by all verdicts; each test has half of `alpha`, and holds whenever one looks. So
whatever the judge is, a student at the bound is proposed with a probability of at most `alpha` (Angelopoulos
et al. 2023, "PPI++", with the capital of `paired_evidence` in the place of normal intervals).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.evals.intervals import LEAST_LABELS, mean_interval
from headrace.evals.paired_evidence import (
    PairCounts,
    Simulated,
    Standing,
    capital,
    check_bounds,
    first_crossings,
    lower_bound_of,
    turned,
)

SKIPPED: Final = -2
"""A person would not say. It counts as what is worst for whatever is tested."""
WEIGHT: Final = 0.5
"""Of the judge's verdicts: judges are noisy, and labels would have to outweigh all of that."""
LARGEST: Final = 1.5
GAPS: Final = tuple(thirds / 3 for thirds in range(3, -4, -1))
"""What a person says less the weighted verdict, as part of the largest such difference."""
MOST_GROWTH = 100
"""So many times the labels of today are looked ahead."""


class JudgeCalibration(Struct, frozen=True, kw_only=True):
    """What labels say about a judge. `gaps` count by their size the differences of people and judge (`GAPS`),
    of all pairs that labels stand for; `turned` those of judge and people; `people` what people say. Of the
    `decided` pairs of which both prefer one answer, `agreed` are those of which they prefer the same."""

    labels: int
    skipped: int
    agreed: int
    decided: int
    gaps: Mapping[float, int]
    turned: Mapping[float, int]
    people: Mapping[float, int]

    @property
    def agreement(self) -> tuple[float, float]:
        """The part of the decided pairs in which they agree, and its lower bound (95 %)."""
        if not self.decided:
            return 0.0, 0.0
        found = mean_interval([1.0] * self.agreed + [0.0] * (self.decided - self.agreed))
        return found.mean, found.low

    def counts(self, margin: float, alpha: float) -> bool:
        """Whether verdicts may propose a student: the judge is shown to agree with people more often than a
        coin, or what people say shows as much without it."""
        if self.labels < LEAST_LABELS:
            return False
        if self.decided >= LEAST_LABELS and self.agreement[1] > 0.5:
            return True
        return lower_bound_of(self.people, alpha / 2) >= -margin


def calibration_of(pairs: Iterable[tuple[bool, int, int | None]]) -> JudgeCalibration:
    """From pairs in their order: whether the judge was asked, what it said, and what a person says (None:
    nobody was asked).

    Of a pair that needs no judge nobody is asked, since its difference is 0. A label stands for such pairs as
    came directly before its own, too: together they are like pairs of the whole traffic.
    """
    gaps, turns, people = Counter[float](), Counter[float](), Counter[float]()
    labels = skipped = agreed = decided = before = 0
    for was_asked, judged, person in pairs:
        if not was_asked:
            before += 1
            continue
        if person is not None:
            gaps[0.0] += before
            turns[0.0] += before
            people[0.0] += before
            worst, best = (-1, 1) if person == SKIPPED else (person, person)
            gaps[(2 * worst - judged) / 3] += 1
            turns[(judged - 2 * best) / 3] += 1
            people[float(worst)] += 1
            labels += 1
            skipped += person == SKIPPED
            if judged and person in (1, -1):
                decided += 1
                agreed += judged == person
        before = 0
    return JudgeCalibration(
        labels=labels,
        skipped=skipped,
        agreed=agreed,
        decided=decided,
        gaps={one: gaps[one] for one in GAPS},
        turned={one: turns[one] for one in GAPS},
        people={one: people[one] for one in (1.0, 0.0, -1.0)},
    )


def least_gap(gaps: Mapping[float, int], alpha: float) -> float:
    """The mean of what people say less the weighted verdict is above this, with confidence 1 - `alpha`."""
    return LARGEST * (lower_bound_of(gaps, alpha) if any(gaps.values()) else -1.0)


class JudgeBounds(Struct, frozen=True, kw_only=True):
    """What the mean of the verdicts is tested against, as long as no label is added: a student is ready
    where it is shown to be above `ready`, inferior where its negative is above `inferior`; None: it is never.
    Each where a capital has become `needed`."""

    ready: float | None
    inferior: float | None
    needed: float


def bounds_of(labels: JudgeCalibration, margin: float, alpha: float) -> JudgeBounds:
    """What labels let verdicts say."""
    return JudgeBounds(
        ready=_ready_bound(labels, margin, alpha),
        inferior=_bound(margin - least_gap(labels.turned, alpha / 2)),
        needed=2 / alpha,
    )


def _ready_bound(labels: JudgeCalibration, margin: float, alpha: float) -> float | None:
    if not labels.counts(margin, alpha):
        return None
    return _bound(-margin - least_gap(labels.gaps, alpha / 2))


def _bound(of_weighted: float) -> float | None:
    found = of_weighted / WEIGHT
    return max(found, -0.999) if found < 1 else None


def judged_standing(counts: PairCounts, bounds: JudgeBounds) -> Standing:
    """As `paired_evidence.standing`, of what a judge says, corrected by labels."""
    if judged_capital(counts, bounds) >= bounds.needed:
        return "ready"
    other = bounds.inferior
    return "inferior" if other is not None and capital(turned(counts), other) >= bounds.needed else "open"


def judged_capital(counts: PairCounts, bounds: JudgeBounds) -> float:
    """What the bets on verdicts have made of 1; 0 where labels do not let a student be proposed."""
    return 0.0 if bounds.ready is None else capital(counts, bounds.ready)


def judged_lower_bound(counts: PairCounts, labels: JudgeCalibration, alpha: float) -> float:
    """As `paired_evidence.lower_bound`, of what people would say."""
    low = WEIGHT * lower_bound_of(counts.by_kind, alpha / 2) + least_gap(labels.gaps, alpha / 2)
    return max(-1.0, low)


def judged_upper_bound(counts: PairCounts, labels: JudgeCalibration, alpha: float) -> float:
    """People would say no more than this by the mean, with confidence 1 - `alpha`, whenever one looks."""
    low = WEIGHT * lower_bound_of(turned(counts).by_kind, alpha / 2) + least_gap(labels.turned, alpha / 2)
    return min(1.0, -low)


def judged_difference(counts: PairCounts, labels: JudgeCalibration) -> float:
    """The mean difference as people would say, as far as is known."""
    return max(-1.0, min(1.0, WEIGHT * counts.difference + LARGEST * _mean(labels.gaps)))


def _mean(values: Mapping[float, int]) -> float:
    return sum(one * count for one, count in values.items()) / max(sum(values.values()), 1)


def missing_labels(counts: PairCounts, labels: JudgeCalibration, margin: float, alpha: float) -> int | None:
    """About so many more labels let the verdicts decide, if they are as those that there are; 0 where it is
    for the verdicts, None where labels say that the student is worse than the margin allows."""
    if labels.labels < LEAST_LABELS:
        return LEAST_LABELS - labels.labels
    room = margin + judged_difference(counts, labels)
    if room <= 0:
        return None
    wanted = LARGEST * _mean(labels.gaps) - room / 2
    times = 1.0
    while times < MOST_GROWTH:
        more = {size: round(times * count) for size, count in labels.gaps.items()}
        if least_gap(more, alpha / 2) >= wanted:
            break
        times *= 1.25
    found = math.ceil((times - 1) * labels.labels)
    return max(found, 0 if labels.counts(margin, alpha) else max(1, LEAST_LABELS - labels.decided))


def simulate_judged(
    students: int,
    margin: float,
    alpha: float,
    *,
    agreement: float,
    labels: int,
    leaning: float = 0.0,
    better: float | None = None,
    disagreement: float = 0.1,
    examples: int = 5000,
    seed: int = 0,
) -> Simulated:
    """As `paired_evidence.simulate`, with a judge that says of a part `agreement` of the pairs what people
    say, and of the others one of both other things: with a `leaning` of 1 always the better one for the
    student, of -1 the worse one. Of the first `labels` pairs people are asked."""
    check_bounds(margin, alpha)
    for name, value, least in (("agreement", agreement, 0.0), ("leaning", leaning, -1.0)):
        if not least <= value <= 1:
            raise InvalidRequest(f"{name} is {value}, it must be from {least:g} to 1", param=name)
    mean = -margin if better is None else better
    if not abs(mean) <= disagreement <= 1:
        raise InvalidRequest(
            f"disagreement is {disagreement}: people prefer one answer in {abs(mean):g} of the pairs or more",
            param="disagreement",
        )
    if students < 1 or not 0 <= labels <= examples:
        raise InvalidRequest("students must be 1 or more, and labels no more than examples", param="labels")
    random, times = np.random.default_rng(seed), list[int]()
    for _ in range(students):
        drawn, wrong, side = random.random((3, examples))
        people = (drawn < (disagreement + mean) / 2).astype(int) - (drawn >= 1 - (disagreement - mean) / 2)
        low, high = np.where(people == -1, 0, -1), np.where(people == 1, 0, 1)
        other = np.where(side < (1 + leaning) / 2, high, low)
        judged = np.where(wrong < agreement, people, other)
        known = zip(judged[:labels].tolist(), people[:labels].tolist(), strict=True)
        calibration = calibration_of((True, said, person) for said, person in known)
        bound = _ready_bound(calibration, margin, alpha)
        if bound is None:
            continue
        running = (np.cumsum(judged == 1)[None], np.cumsum(judged == -1)[None])
        times += first_crossings(*running, bound, alpha / 2)
    return Simulated(
        proposed_share=len(times) / students, samples_median=float(np.median(times)) if times else None
    )
