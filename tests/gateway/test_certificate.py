"""Certified thresholds keep their bound; the alarm of drift keeps its own, and is raised in time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from headrace.errors import InvalidRequest
from headrace.gateway.certificate import (
    binomial_tail,
    certify,
    least_examples,
    thresholds_of,
    upper_bound,
)
from headrace.gateway.drift import DriftAlarm

RUNS = int(os.environ.get("TEST_CERTIFICATES", "300"))


def traffic(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and whether the answer is wrong: less often the higher the score is."""
    scores = random.random(count)
    return scores, random.random(count) < 0.6 * (1 - scores) ** 2


def error_rate(threshold: float) -> float:
    """Of all traffic with a score of at least `threshold`: the integral of the above."""
    return 0.6 * (1 - threshold) ** 2 / 3


@pytest.mark.parametrize("trials", [1, 7, 60, 200])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5, 0.93])
def test_the_tail_is_that_of_the_binomial(trials: int, rate: float) -> None:
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        exact = sum(
            math.comb(trials, k) * Fraction(rate) ** k * (1 - Fraction(rate)) ** (trials - k)
            for k in range(successes + 1)
        )
        assert binomial_tail(successes, trials, rate) == pytest.approx(float(exact), rel=1e-9, abs=0)


def test_the_upper_bound_is_that_of_tables() -> None:
    assert upper_bound(0, 59, 0.95) == pytest.approx(1 - 0.05 ** (1 / 59))  # "the rule of three"
    assert upper_bound(5, 100, 0.975) == pytest.approx(0.112835, abs=1e-6)  # R: binom.test(5, 100)
    assert upper_bound(3, 3, 0.95) == 1.0
    assert least_examples(0.05, 0.95) == 59


def tied(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """As `traffic` with ten scores only."""
    scores = np.floor(10 * random.random(count)) / 10
    return scores, random.random(count) < 0.6 * (1 - scores) ** 2


def tied_rate(threshold: float) -> float:
    return float(np.mean(0.6 * (1 - np.arange(round(10 * threshold), 10) / 10) ** 2))


Sample = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def broken_by(sample: Sample, rate: Callable[[float], float], risk: float, labeled: int) -> tuple[int, float]:
    """In how many of RUNS samples a threshold is certified from which on more is wrong, and the share that
    is answered."""
    random = np.random.default_rng(7)
    broken, answered = 0, 0.0
    for _ in range(RUNS):
        thresholds = thresholds_of(sample(random, 400)[0], labeled, risk=risk)
        found = certify(*sample(random, labeled), thresholds, risk=risk)
        if found is not None:
            broken += rate(found.threshold) > risk
            answered += found.share
            assert found.upper <= risk
    return broken, answered / RUNS


def most_broken() -> float:
    """5 % are allowed; two standard deviations of the count of many runs are added, four of few."""
    return RUNS * 0.05 + (2 if RUNS >= 10_000 else 4) * math.sqrt(RUNS * 0.05 * 0.95)


@pytest.mark.parametrize(("risk", "labeled"), [(0.02, 4000), (0.05, 1000), (0.1, 1000)])
def test_the_bound_holds_over_many_samples(record_property: Any, risk: float, labeled: int) -> None:
    broken, answered = broken_by(traffic, error_rate, risk, labeled)
    record_property("figures", f"{broken} of {RUNS} broken, {answered:.1%} answered")
    assert broken <= most_broken()
    assert answered > 0.2  # a bound that nothing passes would hold, too


def test_the_bound_holds_where_it_is_hardest_to_keep(record_property: Any) -> None:
    """Every answer is wrong with a probability just above the risk: each certificate is a false one."""

    def sample(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        return random.random(count), random.random(count) < 0.0501

    broken, _ = broken_by(sample, lambda threshold: 0.0501, 0.05, 1000)
    record_property("figures", f"{broken} of {RUNS} broken")
    assert 0 < broken <= most_broken()


def test_the_bound_holds_with_equal_scores() -> None:
    broken, answered = broken_by(tied, tied_rate, 0.12, 1000)
    assert broken <= most_broken() and answered > 0.2


def test_nothing_is_certified_where_examples_do_not_suffice() -> None:
    assert certify([0.9] * 58, [False] * 58, [0.5], risk=0.05) is None
    found = certify([0.9] * 59, [False] * 59, [0.5], risk=0.05)
    assert found is not None and found.answered == 59


def test_the_sequence_ends_with_the_first_threshold_that_fails() -> None:
    scores = [0.9] * 100 + [0.5] * 20 + [0.1] * 2000
    wrong = [False] * 100 + [True] * 20 + [False] * 2000  # the last threshold alone would pass
    found = certify(scores, wrong, [0.8, 0.4, 0.0], risk=0.05)
    assert found is not None and found.threshold == 0.8
    assert certify(scores, wrong, [0.4, 0.0], risk=0.05) is None


@pytest.mark.parametrize(
    ("scores", "wrong", "thresholds", "risk", "message"),
    [
        ([0.1], [True, False], [0.5], 0.05, "do not match"),
        ([0.1], [True], [0.5, 0.6], 0.05, "descend"),
        ([math.nan], [True], [0.5], 0.05, "finite"),
        ([], [], [0.5], 0.05, "one at least"),
        ([0.1], [True], [0.5], 0.0, "risk is 0.0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    scores: list[float], wrong: list[bool], thresholds: list[float], risk: float, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        certify(scores, wrong, thresholds, risk=risk)


def test_the_alarm_is_rarely_raised_without_drift() -> None:
    random = np.random.default_rng(3)
    raised = 0
    for _ in range(300):
        alarm = DriftAlarm(0.05, alpha=0.05)
        for wrong in random.random(1500) < 0.05:
            if alarm.add(bool(wrong)):
                break
        raised += alarm.is_raised
    assert raised <= 300 * 0.05 + 4 * math.sqrt(300 * 0.05 * 0.95)


def test_the_alarm_is_raised_soon_after_a_drift() -> None:
    random = np.random.default_rng(3)
    needed: list[int] = []
    for _ in range(100):
        alarm = DriftAlarm(0.05)
        while not alarm.is_raised and alarm.audited < 1000:
            alarm.add(bool(random.random() < 0.2))
        needed.append(alarm.audited)
    assert max(needed) < 1000 and np.median(needed) < 80


def test_a_long_watch_does_not_overflow() -> None:
    alarm = DriftAlarm(0.01)
    for _ in range(100_000):
        alarm.add(True)
    assert alarm.is_raised and math.isfinite(alarm.evidence)
