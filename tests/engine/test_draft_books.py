"""What looking, drafting and checking are booked as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engine.speculative.acceptance import Rate
from headrace.engine.speculative.budget import MAX_LOST_STEPS, MOST
from headrace.engine.speculative.ledger import SpeculationLedger
from headrace.engine.speculative.ngram_index import NgramIndexes
from headrace.engine.speculative.step_cost_model import StepCosts, StepTiming
from headrace.executors.executor import NO_DRAFTS

STEP_S, TOKEN_S, LOOP_S = 1e-3, 0.2e-3, 0.1e-3


@pytest.fixture
def costs() -> StepCosts:
    """A token takes a millisecond, each one more a fifth of that."""
    costs = StepCosts()
    for _ in range(40):
        costs.note_plain(1, 1, STEP_S, LOOP_S)
        costs.note(5, STEP_S + 4 * TOKEN_S)
        costs.note_loop(LOOP_S)
    return costs


def turn(drafted: int, prompt_length: int = 10, start: int = 20) -> Any:
    sequence = SimpleNamespace(prompt_length=prompt_length)
    return SimpleNamespace(
        chunk=SimpleNamespace(sequence=sequence, start=start, drafted=drafted, length=1 + drafted)
    )


def spent(tokens: int, looked_s: float) -> StepTiming:
    return StepTiming(tokens=tokens, steps=1, looked_s=looked_s, run_s=STEP_S, loop_s=LOOP_S)


def test_a_draft_is_worth_what_came_true_less_what_it_took(costs: StepCosts) -> None:
    books = SpeculationLedger()
    books.charged = books.lookup
    before = books.lookup._balance
    books.settle([turn(4)], spent(5, looked_s=0.1e-3), 3, costs, free=True)
    lost = (0.1e-3 + 4 * TOKEN_S) / (STEP_S + LOOP_S)
    assert books.lookup._balance - before == pytest.approx(3 - lost, rel=0.02)
    assert books.model._balance == before


def test_a_long_prompt_is_booked_whole_though_little_by_little(costs: StepCosts) -> None:
    books = SpeculationLedger()
    books.taken_s = 30 * (STEP_S + LOOP_S)
    assert books.busy
    books.settle([turn(0)], spent(1, looked_s=books.taken_s), 0, costs, free=True)
    assert books.lookup._invested == pytest.approx(30, rel=0.02) and books.lookup.open
    books.write_off(1.0)
    assert books.lookup._balance < -28 and books.model.open


def test_what_was_taken_beside_another_prompt_is_booked_too(costs: StepCosts) -> None:
    books = SpeculationLedger()
    books.taken_s = STEP_S
    books.settle([turn(0), turn(0, prompt_length=500)], spent(300, looked_s=STEP_S), 0, costs, free=True)
    assert books.lookup._invested > 0.5


def test_a_prompt_that_was_taken_after_the_look_is_no_gain(costs: StepCosts) -> None:
    books = SpeculationLedger()
    books.charged, books.taken_s = books.lookup, 5 * STEP_S  # for a call that did not come about
    before = books.lookup._balance
    books.settle([turn(0)], spent(1, looked_s=0.1e-3), 0, costs, free=True)
    assert books.lookup._balance <= before and books.lookup._invested > 4


def test_nothing_is_booked_where_nobody_looked(costs: StepCosts) -> None:
    books = SpeculationLedger()
    assert not books.busy
    books.charged = books.model
    assert books.busy
    books.open_look()
    assert not books.busy and books.charged is None


def test_shorter_calls_are_a_loss_of_their_own(costs: StepCosts) -> None:
    free, bound = SpeculationLedger(), SpeculationLedger()
    for _ in range(20):
        costs.note_loop(4 * LOOP_S)
    for books in (free, bound):
        books.charged = books.model
        books.settle([turn(0)], spent(1, looked_s=0.0), 0, costs, free=books is free)
    assert free.model._balance - bound.model._balance > 0.1


def test_a_call_is_worth_what_came_true_less_what_its_steps_took_longer(costs: StepCosts) -> None:
    books = SpeculationLedger()
    before = books.lookup._balance
    books.settle_call(2, [6], 3, 0.0, costs)
    lost = (costs.seconds(6) - costs.seconds(2)) / (costs.seconds(2) + costs.plain_loop_s)
    assert books.lookup._balance == pytest.approx(min(before + 3 / 2 - lost, MOST))


def test_a_look_that_found_nothing_before_a_call_is_booked(costs: StepCosts) -> None:
    books = SpeculationLedger()
    books.charged, books.caught_up_s = books.model, STEP_S
    before = books.model._balance
    books.settle_call(1, [], 0, 2 * STEP_S, costs)
    assert books.model._balance < before - 0.5 and books.model._invested > 0.5
    books.open_look()
    after = books.model._balance
    books.settle_call(1, [], 0, 1.0, costs)
    assert books.model._balance == after


def test_texts_that_are_watched_bear_what_looking_at_them_takes(costs: StepCosts) -> None:
    books = SpeculationLedger()
    texts = NgramIndexes(books, lookup=True, model_rate=Rate(0.5))
    sequence = SimpleNamespace(id=1, tokens=[5, 6, 7, 5, 6], prompt_length=5)
    request = SimpleNamespace(prediction=())
    choice: Any = SimpleNamespace(sequence=sequence, request_state=SimpleNamespace(request=request))
    turns: Any = [SimpleNamespace(choice=choice)]
    assert texts.guesses(turns, 32, costs).texts and texts.watched
    assert books.charged is books.lookup and books.taken_s > 0
    books.called_s = 0.0
    texts.forget(choice)
    assert books.called_s > 0 and not texts.watched
    books.open_look()
    books.lookup.note(-MAX_LOST_STEPS)
    assert texts.guesses(turns, 32, costs) is NO_DRAFTS and books.charged is None


def test_what_guessing_within_calls_took_is_booked_once(costs: StepCosts) -> None:
    books = SpeculationLedger()
    books.called_s = 0.5 * (STEP_S + LOOP_S)
    assert not books.busy  # a step by itself has nothing to book for it
    before = books.lookup._balance
    books.settle_call(1, [], 0, 0.0, costs)
    assert books.lookup._balance == pytest.approx(before - 0.5, rel=0.02)
    after = books.lookup._balance
    books.settle_call(1, [], 0, 0.0, costs)
    assert books.lookup._balance == after and books.model._balance == before


def test_an_overdraft_that_was_used_up_is_paid_back_before_texts_are_watched_again() -> None:
    account = SpeculationLedger().lookup
    account.note(-1.5)
    assert not account.open and account.tolerant  # what is known already may be watched on
    account.note(-1.0)
    assert not account.tolerant
    account.note(1.0)
    assert not account.tolerant and not account.open
    account.note(1.0)
    assert account.tolerant and account.open
