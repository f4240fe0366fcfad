"""Whether a drafter pays: it rests where it does not, is tried again, and loses a bounded share."""

from __future__ import annotations

import pytest

from headrace.engine.speculative.drafter_gain import (
    FORGETTING,
    MARGIN,
    MAX_CREDIT,
    MAX_INTERVAL,
    MAX_LOST_STEPS,
    MIN_INTERVAL,
    TRIAL,
    DrafterGain,
)

STEP_S = 1e-3


def run(gain: DrafterGain, steps: int, net: float, first: int = 0) -> tuple[int, float]:
    """Ask for so many steps, `net` steps gained in each: how often it was active, and what was lost."""
    asked, lost = 0, 0.0
    for step in range(first, first + steps):
        if gain.is_active(step):
            asked += 1
            lost -= net
            gain.settle(max(net, 0.0), max(-net, 0.0) * STEP_S, STEP_S)
    return asked, lost


@pytest.mark.parametrize("net", [-0.02, -0.1, -0.5, -2.0])
def test_drafts_that_never_pay_cost_a_bounded_share(net: float) -> None:
    steps = 20_000
    asked, lost = run(DrafterGain(), steps, net)
    trials = 7 + steps / MAX_INTERVAL  # the intervals double
    assert lost <= trials * (TRIAL + MAX_LOST_STEPS)
    assert lost < 0.002 * steps
    assert asked >= steps // MAX_INTERVAL  # and they are tried again


def test_the_interval_doubles_and_one_that_pays_is_short_again() -> None:
    gain, rests = DrafterGain(), []
    step = 0
    for _ in range(9):
        gain.is_active(step)
        while gain.is_active(step):
            gain.settle(0.0, STEP_S, STEP_S)
            step += 1
        rests.append(gain.resting_until - step + 1)
        step = gain.resting_until
    assert rests[:3] == [MIN_INTERVAL, 2 * MIN_INTERVAL, 4 * MIN_INTERVAL]
    assert rests[-1] == MAX_INTERVAL
    run(gain, 3, 1.0, first=step)
    assert gain.interval == MIN_INTERVAL and gain.is_active(step + 3)


def test_what_pays_is_asked_always() -> None:
    assert run(DrafterGain(), 5_000, 2 * MARGIN)[0] == 5_000


def test_one_that_begins_to_pay_is_found_within_the_interval() -> None:
    gain = DrafterGain()
    run(gain, 30_000, -0.5)
    asked, _ = run(gain, 2 * MAX_INTERVAL, 0.5, first=30_000)
    assert asked >= MAX_INTERVAL and gain.interval == MIN_INTERVAL


def test_what_was_gained_pays_for_few_losses() -> None:
    gain = DrafterGain()
    run(gain, 1_000, 3.0)
    assert gain.credit <= MAX_CREDIT
    asked, _ = run(gain, MIN_INTERVAL, -1.0, first=1_000)
    assert asked == MAX_CREDIT


def test_one_disturbed_step_does_not_end_it() -> None:
    gain = DrafterGain()
    run(gain, 10, 1.0)
    gain.settle(0.0, 1000 * STEP_S, STEP_S)
    assert gain.is_active(11)


def test_time_spent_is_charged_once() -> None:
    gain = DrafterGain()
    gain.is_active(1)
    gain.spent_s = 0.5 * STEP_S
    gain.settle(0.0, 0.0, STEP_S)
    assert gain.credit == pytest.approx(TRIAL - 0.5 - MARGIN, abs=0.03) and gain.spent_s == 0
    gain.settle(0.0, 0.0, STEP_S)
    assert gain.credit == pytest.approx(TRIAL - 0.5 - 2 * MARGIN, abs=0.05)


def test_a_trial_that_is_granted_begins_now() -> None:
    gain = DrafterGain()
    run(gain, 1_000, -1.0)
    assert not gain.is_active(1_000)
    interval = gain.interval
    gain.grant_trial()
    assert gain.is_active(1_000) and gain.untested and gain.interval == interval
    run(gain, 3, -1.0, first=1_000)
    assert not gain.is_active(1_003)


def test_an_investment_is_charged_little_by_little() -> None:
    gain = DrafterGain()
    run(gain, 10, 1.0)
    gain.spent_s = gain.prompt_s = 3 * STEP_S
    gain.settle(0.0, 0.0, STEP_S)
    assert gain.is_active(11) and gain.credit > MAX_CREDIT - 0.1
    charged = 0.0
    for step in range(11, 11 + 2_000):
        before = gain.credit * (1 - FORGETTING) - MARGIN
        gain.settle(0.0, 0.0, STEP_S)
        charged += max(before - gain.credit, 0.0)
        gain.credit = MAX_CREDIT
        gain.is_active(step)
    assert charged == pytest.approx(3.0, rel=0.02)


def test_what_is_left_of_an_investment_is_lost_with_its_request_and_paid_for_by_a_longer_rest() -> None:
    gain = DrafterGain()
    gain.is_active(1)
    gain.spent_s = gain.prompt_s = 30 * STEP_S
    gain.settle(0.0, 0.0, STEP_S)
    assert gain.is_active(2)
    gain.write_off(1.0)
    assert not gain.is_active(3)
    assert gain.resting_until > 25 * MIN_INTERVAL
    gain.write_off(1.0)  # nothing is left
    assert gain.resting_until < 31 * MIN_INTERVAL


def test_a_loss_during_a_rest_makes_it_longer() -> None:
    gain = DrafterGain()
    gain.is_active(1)
    gain.settle(0.0, 2 * STEP_S, STEP_S)
    gain.settle(0.0, 2 * STEP_S, STEP_S)
    until = gain.resting_until
    assert not gain.is_active(2)
    gain.spent_s = STEP_S
    gain.settle(0.0, 0.0, STEP_S)
    assert gain.resting_until >= until + MIN_INTERVAL


def test_one_that_neither_gains_nor_loses_rests_in_the_end() -> None:
    assert run(DrafterGain(), 5_000, 0.0)[0] < 1_500


def test_one_that_gains_hardly_anything_rests_in_the_end() -> None:
    assert run(DrafterGain(), 5_000, MARGIN / 2)[0] < 2_500
