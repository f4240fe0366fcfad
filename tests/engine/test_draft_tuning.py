"""How many guesses are checked: what costs and rates say, and what is remembered of them."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._native import MATCH_KINDS
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.budget import (
    FIRST,
    MAX_LOST_STEPS,
    MOST,
    OVERDRAFT,
    SHARE,
    SpeculationBudget,
)
from headrace.engine.speculative.draft_selection import MAX_DRAFTED, best_depth
from headrace.engine.speculative.ledger import SpeculationLedger
from headrace.engine.speculative.ngram_index import PRIORS, TRIED_KIND, NgramIndexes
from headrace.engine.speculative.probing import (
    DRAFTS_S,
    LONGEST_REST,
    LONGEST_SLEEP,
    PLAIN_EVERY,
    SEVERAL,
    BaselineProbe,
    IdleBackoff,
    LookupBackoff,
    ProposalBackoff,
)
from headrace.engine.speculative.prompt_lookup import Lookup
from headrace.engine.speculative.speculation import PROBE_EVERY, Speculation
from headrace.engine.speculative.step_cost_model import ENOUGH_S, LARGEST, PRIOR_SHARE, StepCosts


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


def test_a_prompt_says_what_many_tokens_cost():
    costs = StepCosts()
    costs.note_prompt(500, 10.0)  # the first, which waits for the weights
    costs.note(1, 2e-3)
    costs.note_prompt(500, 500 * 1e-3)
    costs.note_prompt(2, 1.0)  # too few to say anything
    assert costs.curve()[LARGEST] == pytest.approx(LARGEST * 1e-3)
    assert costs.curve()[2] - costs.curve()[1] == pytest.approx((LARGEST - 2) * 1e-3 / (LARGEST - 1))
    for _ in range(9):
        costs.note(5, 2.1e-3)  # what is measured comes first
    assert costs.curve()[3] < 2.11e-3 < costs.curve()[6]


def test_larger_steps_than_are_compared_leave_it_unknown():
    costs = StepCosts()
    costs.note_plain(LARGEST + 1, 1, 1.0, 0.1)
    assert not costs.known
    costs.note_plain(LARGEST, 1, 1.0, 0.1)
    assert costs.known and costs.curve()[1] == 1.0


def test_costs_never_fall_with_tokens():
    costs = StepCosts()
    for tokens, seconds in [(1, 5e-3), (4, 3e-3), (9, 9e-3)]:
        costs.note(tokens, seconds)
    curve = costs.curve()
    assert all(after >= before for before, after in pairwise(curve))


def test_the_loop_around_drafts_is_that_of_other_calls_until_it_is_measured():
    costs = StepCosts()
    costs.note_plain(1, 1, 1e-3, 500e-6)  # cold
    for _ in range(3):
        costs.note_plain(1, 8, 8e-3, 100e-6)
    assert costs.loop_s == pytest.approx(100e-6, rel=0.2)
    costs.note_loop(300e-6)
    costs.note_plain(1, 8, 8e-3, 100e-6)
    assert costs.loop_s == 300e-6


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


def found(lookup: Lookup, text: list[int], count: int) -> tuple[int, list[int]]:
    return lookup.follow(text), lookup.draft(text, count)


def test_the_longest_end_that_stands_before_is_prolonged():
    lookup = Lookup(6)
    text = [1, 2, 3, 9, 1, 2]
    assert found(lookup, text, 3) == (1, [3, 9, 1])
    text += [3, 9]
    assert found(lookup, text, 8) == (2, [1, 2, 3, 9, 1, 2, 3, 9])
    text += [5]
    assert found(lookup, text, 8) == (-1, [])


def test_a_prediction_is_followed_while_it_comes_true_and_looked_up_after():
    lookup = Lookup(2, prediction=[4, 5, 6, 7, 8])
    text = [1, 2]
    best = MATCH_KINDS - 1
    assert found(lookup, text, 3) == (best, [4, 5, 6])
    text += [4, 5]
    assert found(lookup, text, 9) == (best, [6, 7, 8])
    text += [9, 6]
    assert found(lookup, text, 2) == (0, [7, 8])
    text += [7, 8]
    assert found(lookup, text, 2) == (1, [])  # nothing goes on from the prediction into the prompt


@pytest.mark.parametrize("prediction", [(), (4, 5, 6)])
def test_what_a_watching_call_has_taken_is_not_taken_twice(prediction: tuple[int, ...]):
    text = [1, 2, 3, 1]
    one, other = Lookup(4, prediction), Lookup(4, prediction)
    one.follow(text)
    for token in (4, 5, 1, 2):
        one.text.extend([token])
        text.append(token)
    assert found(one, text, 3) == found(other, text, 3) == (1, [3, 1, 4])


def test_looks_become_rarer_and_repeated_steps_are_part_of_the_rest():
    looks, waited = ProposalBackoff(), []
    for _ in range(40):
        waits = 0
        while not looks.due(wanted=True):
            waits += 1
        looks.note(found=False)
        waited.append(waits)
    assert waited[:4] == [0, 0, 1, 1] and waited[-1] == LONGEST_REST
    looks.ran(4)
    assert looks.rest == LONGEST_REST - 3 and looks.rare
    looks.note(found=True)
    assert looks.rest == 0 and not looks.rare and looks.due(wanted=True)


def test_nothing_is_looked_for_where_nothing_can_be_found():
    looks = ProposalBackoff()
    assert not looks.due(wanted=False) and looks.rare
    assert looks.due(wanted=True) and not looks.rare


def test_texts_of_several_are_looked_at_less_often_where_nothing_comes_of_it():
    def looks(sequences: int, found: bool, steps: int) -> int:
        count = 0
        for _ in range(steps):
            if rests.due(sequences):
                rests.note(found=found)
                count += 1
            rests.ran(1)
        return count

    rests = LookupBackoff()
    assert looks(SEVERAL, found=True, steps=20) == 20
    assert looks(SEVERAL, found=False, steps=400) < 400 // LONGEST_REST + 20
    assert looks(SEVERAL - 1, found=False, steps=20) == 20
    rests.note(found=False)
    assert not rests.due(SEVERAL)
    rests.ran(LONGEST_REST)  # one call
    assert rests.due(SEVERAL)


def test_a_sleep_begins_after_the_next_step_and_its_steps_are_counted():
    sleep = IdleBackoff()
    assert not sleep.lasts(10) and sleep.end(10) == 0
    sleep.begin(5)
    assert [sleep.lasts(steps) for steps in (11, 13, 15, 16)] == [True, True, True, False]
    assert sleep.end(16) == 5
    assert not sleep.lasts(17) and sleep.end(17) == 0
    sleep.begin(10 * LONGEST_SLEEP)
    assert sleep.lasts(20) and not sleep.lasts(20 + LONGEST_SLEEP)


def test_a_sleep_that_is_ended_counts_what_it_took():
    sleep = IdleBackoff()
    sleep.begin(50)
    sleep.wake()
    assert not sleep.lasts(1)  # it had not begun
    sleep.begin(50)
    assert sleep.lasts(2) and sleep.lasts(9)
    sleep.wake()
    assert not sleep.lasts(12) and sleep.end(12) == 10


def _arrived(*, matcher: object = None, prediction: tuple[int, ...] = ()) -> Any:
    request = SimpleNamespace(prediction=prediction)
    return SimpleNamespace(matcher=matcher, request_state=SimpleNamespace(request=request))


def test_what_brings_drafts_of_its_own_keeps_speculation_awake():
    speculation = Speculation(max_rows=64)
    plain, grammar, predicted = _arrived(), _arrived(matcher=object()), _arrived(prediction=(1,))
    speculation._books.lookup.note(-MAX_LOST_STEPS)
    for one in (grammar, predicted):
        speculation._fall_asleep([plain, one])
        assert not speculation.asleep(1)
        speculation._fall_asleep([plain])
        speculation.wake_for([plain])
        assert speculation.asleep(1)
        speculation.wake_for([plain, one])
        assert not speculation.asleep(2)


def test_small_changes_of_a_cost_add_up():
    costs = StepCosts()
    costs.note(1, 1e-3)
    costs.note(9, 2e-3)
    for _ in range(400):
        costs.note(9, costs.curve()[9] * 1.02)
    assert costs.curve()[9] > 2.5e-3


def test_steps_without_drafts_have_their_turn_and_it_ends():
    plain = BaselineProbe()
    for _ in range(PLAIN_EVERY):
        assert not plain.due
        plain.note_drafts(DRAFTS_S)
    assert plain.due
    for _ in range(PLAIN_EVERY):
        plain.put_off()  # nothing but prompts
    assert not plain.due
    for _ in range(PLAIN_EVERY):
        plain.note_drafts(DRAFTS_S)
    plain.note(ENOUGH_S / 2)
    assert plain.due
    plain.note(ENOUGH_S / 2)
    assert not plain.due


def test_what_has_to_be_found_follows_what_pays():
    dear, cheap = StepCosts(), StepCosts()
    for tokens in (1, *[64] * 100):
        dear.note_plain(tokens, 1, tokens * 1e-3, 1e-4)  # every token costs its millisecond
    cheap.note_plain(1, 1, 1e-3, 1e-4)
    cheap.note_plain(64, 1, 1.05e-3, 1e-4)
    assert _texts().least_kind(1, dear) == TRIED_KIND
    assert _texts().least_kind(1, cheap) == 0
    assert best_depth(0.8, 1, dear) == 0
    depths = [best_depth(chance, 1, cheap) for chance in PRIORS]
    assert depths == sorted(depths) and depths[0] > 0 and depths[-1] == MAX_DRAFTED


def _texts() -> NgramIndexes:
    return NgramIndexes(SpeculationLedger(), lookup=True, model_rate=Rate(0.5))


def test_a_good_draft_is_checked_now_and_then_where_it_does_not_pay():
    """Costs that were measured at a bad moment do not stay for ever."""
    speculation = Speculation(max_rows=64)
    good = [speculation._probes(0.9) for _ in range(2 * PROBE_EVERY)]
    assert good.count(True) == 2 and good[-1]
    assert not any(speculation._probes(0.1) for _ in range(5 * PROBE_EVERY))


def test_drafts_that_never_pay_cost_a_bounded_share():
    account, tried = SpeculationBudget(), 0
    for _ in range(10_000):
        account.earn(1)
        if account.open:
            tried += 1
            account.note(-0.5)
    assert tried * 0.5 <= FIRST + 10_000 * SHARE + 0.5
    assert tried > 100  # and they are tried again


def test_what_was_saved_pays_for_few_losses():
    account = SpeculationBudget()
    for _ in range(1000):
        account.note(3.0)
    losses = 0
    while account.open:
        account.note(-1.0)
        losses += 1
    assert losses == MOST


def test_one_disturbed_step_does_not_end_it():
    account = SpeculationBudget()
    account.note(MOST)
    account.note(-1000.0)
    assert account.open


def test_what_is_paid_for_may_go_on_a_little_longer():
    account = SpeculationBudget()
    account.note(-FIRST)
    assert account.tolerant and not account.open
    account.note(-OVERDRAFT)
    assert not account.tolerant


def test_an_account_says_when_it_will_open_again():
    account = SpeculationBudget()
    assert account.closed_for == 0
    account.note(-FIRST - 0.1)
    closed = account.closed_for
    account.earn(closed - 1)
    assert not account.open and account.closed_for == 1
    account.earn(1)
    assert account.open and account.closed_for == 0


def test_a_grant_opens_what_had_no_luck():
    account = SpeculationBudget()
    while account.open:
        account.note(-MAX_LOST_STEPS)
    account.grant(1.0)
    assert account.open
    account.note(-1.0)
    assert not account.open


def test_what_was_invested_is_lost_little_by_little_and_in_the_end_all():
    account = SpeculationBudget()
    account.note(MOST)
    account.invest(3.0)
    account.earn(1)
    assert account.open
    lost = account._invested
    for _ in range(2000):
        account.note(-SHARE)  # what is earned
        account.earn(1)
    assert lost > 2.9 and account._invested < 0.01
    assert account._balance == pytest.approx(MOST + SHARE - 3.0, abs=0.1)


def test_what_was_invested_in_a_request_is_lost_with_it():
    account = SpeculationBudget()
    account.invest(3.0)
    account.write_off(1.0)
    assert account._balance == FIRST - 3.0 and account._invested == 0.0
