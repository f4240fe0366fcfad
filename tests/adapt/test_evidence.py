"""The test of students: how often it proposes bad ones, and how soon good ones."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from headrace.errors import InvalidRequest
from headrace.evals.paired_evidence import (
    PairCounts,
    capital,
    check_bounds,
    lower_bound,
    simulate,
    standing,
    turned,
)

STUDENTS, ALPHA = 1000, 0.05
MOST = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / STUDENTS)


@pytest.mark.parametrize("disagreement", [0.02, 0.1, 0.4])
def test_students_at_the_bound_are_seldom_proposed(disagreement: float) -> None:
    found = simulate(STUDENTS, 0.02, ALPHA, disagreement=disagreement)
    assert 0 < found.proposed_share <= MOST


def test_good_students_are_proposed_soon() -> None:
    found = simulate(STUDENTS, 0.02, ALPHA, better=0.03, examples=3000)
    assert found.proposed_share >= 0.8 and (found.samples_median or 9e9) < 1000
    equal = simulate(STUDENTS, 0.02, ALPHA, better=0.0, disagreement=0.04, examples=3000)
    assert equal.proposed_share >= 0.8


def test_looks_of_a_plain_test_would_propose_many() -> None:
    """What an e-process is for: a z-test that is looked at every 50 examples."""
    random, proposed = np.random.default_rng(0), 0
    for _ in range(300):
        drawn = random.random(5000)
        pairs = (drawn < 0.04).astype(float) - (drawn >= 0.94)
        sums = np.cumsum(pairs + 0.02)[49::50]
        counts = np.arange(50, 5001, 50)
        spread = np.sqrt(np.cumsum((pairs + 0.02) ** 2)[49::50] / counts)
        proposed += bool((sums / counts / (spread / np.sqrt(counts)) > 1.645).any())
    assert proposed / 300 > 0.15


def test_capital_is_a_martingale_at_the_bound() -> None:
    """The mean over all outcomes of some examples is what it began with: computed, not drawn."""
    better, same, worse = 0.04, 0.90, 0.06
    for examples in (1, 7):
        total = 0.0
        for b in range(examples + 1):
            for w in range(examples + 1 - b):
                s = examples - b - w
                ways = math.factorial(examples) / math.factorial(b) / math.factorial(w) / math.factorial(s)
                total += ways * better**b * same**s * worse**w * capital(PairCounts(b, s, w), -0.02)
        assert total == pytest.approx(1.0, abs=1e-9)


def test_standing_and_bound_agree() -> None:
    ready, bad = PairCounts(30, 960, 10), PairCounts(5, 900, 95)
    assert standing(ready, 0.02, 0.05) == "ready" and lower_bound(ready, 0.05) > -0.02
    assert standing(bad, 0.02, 0.05) == "inferior" and lower_bound(bad, 0.05) < -0.02
    assert standing(PairCounts(), 0.02, 0.05) == "open" and lower_bound(PairCounts(), 0.05) == -1.0
    assert turned(turned(ready)) == ready and ready.difference == pytest.approx(0.02)
    assert PairCounts().with_pair(-1).with_pair(0).with_pair(1) == PairCounts(1, 1, 1)


def test_bad_numbers_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"margin is 0\.0"):
        check_bounds(0.0, 0.05)
    with pytest.raises(InvalidRequest, match=r"disagree with the incumbent on 0\.2"):
        simulate(10, 0.02, 0.05, better=0.2, disagreement=0.1)


def test_flags_of_the_simulation(command: Any) -> None:
    found = json.loads(command("simulate", "--students", "20", "--examples", "50", "--json"))
    assert sorted(found) == ["proposed_share", "samples_median"]
    assert "alpha is 1.0" in command("simulate", "--alpha", "1", code=2)
    assert "disagreement is 0.1" in command("simulate", "--better", "5", code=2)
