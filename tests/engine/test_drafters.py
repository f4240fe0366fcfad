"""How many guesses are checked: what costs and rates say, and what is remembered of them."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._native import MATCH_KINDS
from headrace.engine.speculative.acceptance import OwnRate, Rate
from headrace.engine.speculative.client_prediction import ClientPrediction
from headrace.engine.speculative.draft_selection import best_depth
from headrace.engine.speculative.drafter import MAX_DRAFTED, DraftBudget
from headrace.engine.speculative.prompt_lookup import PRIORS, IndexedText, PromptLookup, index_text
from headrace.engine.speculative.step_cost_model import (
    BASELINE_EVERY,
    DRAFTS_S,
    ENOUGH_S,
    LARGEST,
    PRIOR_SHARE,
    BaselineProbe,
    StepCosts,
)


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


def found(text: IndexedText, tokens: list[int], count: int) -> tuple[int, list[int]]:
    text.extend(tokens)
    return text.automaton.match_kind, text.automaton.draft(count)


def test_the_longest_end_that_stands_before_is_prolonged():
    text, tokens = index_text(), [1, 2, 3, 9, 1, 2]
    assert found(text, tokens, 3) == (1, [3, 9, 1])
    tokens += [3, 9]
    assert found(text, tokens, 8) == (2, [1, 2, 3, 9, 1, 2, 3, 9])
    tokens += [5]
    assert found(text, tokens, 8) == (-1, [])


def _choice(tokens: list[int], prompt_length: int, prediction: tuple[int, ...] = ()) -> Any:
    request = SimpleNamespace(prediction=prediction)
    return SimpleNamespace(
        sequence=SimpleNamespace(id=1, tokens=tokens, prompt_length=prompt_length),
        matcher=None,
        request_state=SimpleNamespace(request=request),
    )


def test_a_prediction_is_followed_while_it_comes_true_and_looked_up_after():
    tokens = [1, 2]
    choice = _choice(tokens, 2, prediction=(4, 5, 6, 7, 8))
    follow, lookup = ClientPrediction(), PromptLookup()

    def drafts() -> tuple[list[int], list[int]]:
        budget = DraftBudget(1, 1, 30, _cheap(), {})
        mine, other = follow.propose([choice], budget), lookup.propose([choice], budget)
        return (mine[0].tokens if mine else []), (other[0].tokens[:2] if other else [])

    assert drafts()[0] == [4, 5, 6, 7, 8]
    tokens += [4, 5]
    assert drafts()[0] == [6, 7, 8]
    tokens += [9, 6]
    assert drafts() == ([], [7, 8])
    tokens += [7, 8]
    assert drafts() == ([], [])  # no match crosses from the prediction into the prompt
    follow.forget(choice)
    assert follow.propose([_choice([1, 2], 2, (4,))], DraftBudget(1, 1, 30, _cheap(), {}))


def test_of_several_drafters_the_first_that_finds_something_is_heard():
    choice = _choice([7, 8, 9, 7], 4, prediction=(4, 5))
    follow, lookup = ClientPrediction(), PromptLookup()
    [mine] = follow.propose([choice], DraftBudget(1, 1, 30, _cheap(), {}))
    assert lookup.propose([choice], DraftBudget(1, 1, 30, _cheap(), {1: mine})) == []
    assert lookup.propose([choice], DraftBudget(1, 1, 30, _cheap(), {}))


@pytest.mark.parametrize("prediction", [(), (4, 5, 6)])
def test_what_a_call_has_indexed_is_not_indexed_twice(prediction: tuple[int, ...]):
    tokens = [1, 2, 3, 1]
    one, other = index_text(prediction), index_text(prediction)
    one.extend(tokens)
    for token in (4, 5, 1, 2):
        one.automaton.extend([token])
        tokens.append(token)
    assert found(one, tokens, 3) == found(other, tokens, 3) == (1, [3, 1, 4])


def _cheap() -> StepCosts:
    costs = StepCosts()
    costs.note_plain(1, 1, 1e-3, 1e-4)
    costs.note_plain(64, 1, 1.05e-3, 1e-4)
    return costs


def _dear() -> StepCosts:
    costs = StepCosts()
    for tokens in (1, *[64] * 100):
        costs.note_plain(tokens, 1, tokens * 1e-3, 1e-4)  # every token costs its millisecond
    return costs


def test_small_changes_of_a_cost_add_up():
    costs = StepCosts()
    costs.note(1, 1e-3)
    costs.note(9, 2e-3)
    for _ in range(400):
        costs.note(9, costs.curve()[9] * 1.02)
    assert costs.curve()[9] > 2.5e-3


def test_steps_without_drafts_have_their_turn_and_it_ends():
    plain = BaselineProbe()
    for _ in range(BASELINE_EVERY):
        assert not plain.due
        plain.note_drafts(DRAFTS_S)
    assert plain.due
    for _ in range(BASELINE_EVERY):
        plain.put_off()  # nothing but prompts
    assert not plain.due
    for _ in range(BASELINE_EVERY):
        plain.note_drafts(DRAFTS_S)
    plain.note(ENOUGH_S / 2)
    assert plain.due
    plain.note(ENOUGH_S / 2)
    assert not plain.due


def test_what_is_drafted_follows_what_pays():
    """A weak match is left out where a token costs as much as a step; a strong one is considered."""
    weak, strong = _choice([1, 2, 3, 1], 4), _choice([*range(1, 33), *range(1, 32)], 63)
    for choice, costs, expected in ((weak, _dear(), 0), (weak, _cheap(), 1), (strong, _dear(), 1)):
        assert len(PromptLookup().propose([choice], DraftBudget(1, 1, 30, costs, {}))) == expected
    assert best_depth(0.8, 1, _dear()) == 0
    depths = [best_depth(chance, 1, _cheap()) for chance in PRIORS]
    assert depths == sorted(depths) and depths[0] > 0 and depths[-1] == MAX_DRAFTED
    assert len(PRIORS) == MATCH_KINDS


def test_a_draft_that_was_not_verified_is_learned_from():
    tokens = [*range(1, 33), *range(1, 32)]
    choice, lookup = _choice(tokens, 63), PromptLookup()
    budget = DraftBudget(1, 1, 30, _dear(), {})
    [draft] = lookup.propose([choice], budget)
    assert draft.rate is not None
    before = draft.rate.value
    lookup.accept(draft, 0, 0)
    tokens.append(99)  # something else came
    lookup.propose([choice], budget)
    assert draft.rate.value < before
