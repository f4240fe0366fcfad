"""How many guesses are checked: what costs and rates say, and what is remembered of them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headrace.engine.speculate.acceptance import OwnRate, Rate
from headrace.engine.speculate.costs import LARGEST, PRIOR_SHARE, StepCosts
from headrace.engine.speculate.lookup import LENGTH_CLASSES, Lookup


def test_between_measured_steps_are_straight_lines_and_beyond_them_what_tokens_added():
    costs = StepCosts()
    for _ in range(40):
        costs.note(1, 10e-3)
        costs.note(5, 14e-3)
    curve = costs.curve()
    assert len(curve) == LARGEST + 1
    assert curve[3] == pytest.approx(12e-3, rel=0.01) and curve[1] == 10e-3
    assert curve[LARGEST] == pytest.approx(14e-3 + (LARGEST - 5) * 1e-3, rel=0.02)


def test_before_anything_larger_is_measured_a_token_costs_little():
    costs = StepCosts()
    costs.note(4, 8e-3)
    assert costs.curve()[5] - costs.curve()[4] == pytest.approx(PRIOR_SHARE * 8e-3)
    assert costs.curve()[1] == 8e-3


def test_costs_never_fall_with_tokens():
    costs = StepCosts()
    for tokens, seconds in [(1, 5e-3), (4, 3e-3), (9, 9e-3)]:
        costs.note(tokens, seconds)
    curve = costs.curve()
    assert all(after >= before for before, after in pairwise(curve))


def test_one_slow_step_counts_little_and_steady_ones_are_followed():
    costs = StepCosts()
    costs.note(1, 10e-3)
    costs.note(1, 10.0)
    costs.note(7, 10.0)
    assert costs.curve()[1] < 12e-3 and costs.curve()[7] < 16e-3
    for _ in range(60):
        costs.note(1, 20e-3)
    assert costs.curve()[1] == pytest.approx(20e-3, rel=0.01)


def test_a_first_step_that_was_slow_is_soon_forgotten():
    costs = StepCosts()
    costs.note(1, 1.0)
    for _ in range(20):
        costs.note(1, 1e-3)
    assert costs.curve()[1] == pytest.approx(1e-3, rel=0.1)


def test_steps_that_are_too_large_or_took_no_time_say_nothing():
    costs = StepCosts()
    costs.note(LARGEST + 1, 1.0)
    costs.note(1, 0.0)
    assert not costs.known


def test_rates_come_to_what_happens():
    rng = random.Random(0)
    rate = Rate(0.1)
    for _ in range(400):
        drawn = [rng.random() < 0.7 for _ in range(6)]
        right = drawn.index(False) if False in drawn else 6
        rate.note(right, int(right < 6))
    assert rate.value == pytest.approx(0.7, abs=0.08)


def test_a_text_starts_with_the_common_rate_and_goes_its_own_way():
    common = Rate(0.5)
    one, other = OwnRate(common), OwnRate(common)
    assert one.value == 0.5
    for _ in range(8):
        one.note(0, 1)
    assert one.value < other.value == common.value < 0.5


def test_the_longest_end_that_stands_before_is_prolonged():
    lookup = Lookup(6)
    text = [1, 2, 3, 9, 1, 2]
    assert lookup.draft(text, 3) == (1, [3, 9, 1])
    text += [3, 9]
    assert lookup.draft(text, 8) == (2, [1, 2, 3, 9, 1, 2, 3, 9])
    text += [5]
    assert lookup.draft(text, 8) == (0, [])


def test_a_prediction_is_followed_while_it_comes_true_and_looked_up_after():
    lookup = Lookup(2, prediction=[4, 5, 6, 7, 8])
    text = [1, 2]
    best = LENGTH_CLASSES - 1
    assert lookup.draft(text, 3) == (best, [4, 5, 6])
    text += [4, 5]
    assert lookup.draft(text, 9) == (best, [6, 7, 8])
    text += [9, 6]
    assert lookup.draft(text, 2) == (0, [7, 8])
    text += [7, 8]
    assert lookup.draft(text, 2) == (1, [])  # nothing goes on from the prediction into the prompt
