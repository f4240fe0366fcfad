"""What the controller charges to drafters, which drafts it has verified, and when it is left out of steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engine.scheduler.sequence import State
from headrace.engine.speculative.controller import MAX_SLEEP, SpeculationController
from headrace.engine.speculative.drafter import Draft
from headrace.engine.speculative.drafter_gain import TRIAL, DrafterGain
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


@pytest.fixture
def controller(costs: StepCosts) -> SpeculationController:
    controller = SpeculationController(max_rows=64)
    controller.costs = costs
    return controller


def choice(*, tokens: list[int] | None = None, prediction: tuple[int, ...] = (), matcher: Any = None) -> Any:
    text = [*range(40), *range(39)] if tokens is None else tokens
    request = SimpleNamespace(prediction=prediction)
    state = SimpleNamespace(request=request, accepted_drafts=0, rejected_drafts=0)
    sequence = SimpleNamespace(
        id=1,
        tokens=text,
        prompt_length=len(text) - 1,
        draft=[],
        pending=1,
        state=State.RUNNING,
        scores=False,
    )
    return SimpleNamespace(sequence=sequence, matcher=matcher, request_state=state)


def slot(of: Any, drafted: int) -> Any:
    sequence = of.sequence
    chunk = SimpleNamespace(
        sequence=sequence, start=len(sequence.tokens) - 1, count=1, drafted=drafted, length=1 + drafted
    )
    return SimpleNamespace(choice=of, chunk=chunk)


def timing(tokens: int, ran: Any = None) -> StepTiming:
    steps, run_s = 1 if ran is None else ran.steps, STEP_S + (tokens - 1) * TOKEN_S
    return StepTiming(tokens, steps, 0.0, run_s, LOOP_S, ran)


def gain_of(controller: SpeculationController) -> DrafterGain:
    gain = controller.lookup.gain
    assert gain is not None
    return gain


def test_a_draft_gains_what_came_true_less_what_verifying_it_took(controller: SpeculationController) -> None:
    one = choice()
    controller.propose([one], 1)
    drafted = len(one.sequence.draft)
    assert drafted > 4 and one.sequence.draft[0] == 39
    gain = gain_of(controller)
    gain.spent_s, gain.prompt_s = 0.1 * STEP_S, 0.0
    this = slot(one, 4)
    one.sequence.tokens += [39, 0, 1, 77]  # three of four are right
    controller.learn([this], timing(5))
    lost = (0.1 * STEP_S + 4 * TOKEN_S) / (STEP_S + LOOP_S)
    assert gain.credit == pytest.approx(TRIAL + 3 - lost, rel=0.05)
    assert (controller.drafted, controller.accepted) == (4, 3)
    assert (one.request_state.accepted_drafts, one.request_state.rejected_drafts) == (3, 1)


def test_looking_without_a_draft_is_charged(controller: SpeculationController) -> None:
    one = choice(tokens=[1, 2, 3, 4])
    controller.propose([one], 1)
    gain = gain_of(controller)
    assert not one.sequence.draft and gain.spent_s > 0
    gain.spent_s, gain.prompt_s = 0.3 * (STEP_S + LOOP_S), 0.0
    controller.learn([slot(one, 0)], timing(1))
    assert gain.credit == pytest.approx(TRIAL - 0.3, rel=0.05) and gain.spent_s == 0


def test_where_nothing_was_asked_nothing_is_charged(controller: SpeculationController) -> None:
    gain = gain_of(controller)
    gain.resting_until = 10
    controller.propose([choice()], 1)
    controller.learn([slot(choice(), 0)], timing(1))
    assert gain.credit == TRIAL and controller.plan([slot(choice(), 0)]) is NO_DRAFTS


def test_two_drafters_share_what_verifying_took(controller: SpeculationController) -> None:
    first, second = choice(prediction=(5, 6)), choice()
    second.sequence.id = 2
    controller.propose([first, second], 1)
    slots = [slot(first, 2), slot(second, 2)]
    gains = [gain_of(controller), controller._prediction.gain]
    for one, tokens in ((first, [5, 6, 7]), (second, [70])):
        one.sequence.tokens += tokens
    for gain in gains:
        assert gain is not None
        gain.spent_s = gain.prompt_s = 0.0
    # The prediction stands for what was generated: its two tokens came.
    first.sequence.draft, second.sequence.draft = [5, 6], [39, 0]
    controller._set = {
        1: Draft(controller._prediction, first, [5, 6], 1.0, count=2),
        2: Draft(controller.lookup, second, [39, 0], 1.0, count=2),
    }
    controller.learn(slots, timing(6))
    lookup, prediction = gains
    assert lookup is not None and prediction is not None
    assert prediction.credit - lookup.credit == pytest.approx(2 / 2, rel=0.05)
    assert lookup.credit < TRIAL


def test_a_call_gains_what_came_true_less_what_its_steps_took_longer(
    controller: SpeculationController,
) -> None:
    one = choice()
    controller.propose([one], 1, several=True)
    assert not one.sequence.draft  # the call drafts
    plan = controller.plan([slot(one, 0)])
    assert plan.texts and any(plan.depths)
    gain = gain_of(controller)
    gain.spent_s = gain.prompt_s = 0.0
    ran = SimpleNamespace(
        steps=1, plain_steps=0, plain_seconds=0.0, drafts=[(0, 5, 4, 3, 1)], draft_steps=[(5, 1.8e-3)]
    )
    controller.learn([slot(one, 0)], timing(1, ran))
    lost = 4 * TOKEN_S / (STEP_S + LOOP_S)
    assert gain.credit == pytest.approx(TRIAL + 3 - lost, rel=0.1)


def test_calls_that_cost_more_than_they_bring_end_in_a_rest(controller: SpeculationController) -> None:
    one, asked = choice(), 0
    for step in range(200):
        controller.propose([one], step, several=True)
        if controller.plan([slot(one, 0)]) is NO_DRAFTS:
            continue
        asked += 1
        gain_of(controller).spent_s = 0.2 * (STEP_S + LOOP_S)
        ran = SimpleNamespace(steps=1, plain_steps=0, plain_seconds=0.0, drafts=[], draft_steps=[])
        controller.learn([slot(one, 0)], timing(1, ran))
    assert 5 <= asked <= 20  # a trial or two


def test_indexing_planning_and_forgetting_a_text_are_charged(controller: SpeculationController) -> None:
    one, gain = choice(), gain_of(controller)
    controller.propose([one], 1, several=True)
    controller.plan([slot(one, 0)])
    assert gain.spent_s >= gain.prompt_s > 0
    gain.spent_s = gain.prompt_s = 0.0
    controller.forget(one)
    assert gain.spent_s > 0


def test_a_good_draft_is_verified_once_in_a_trial_though_it_does_not_seem_to_pay(
    controller: SpeculationController,
) -> None:
    """Costs that were measured at a bad moment do not stay for ever."""
    for _ in range(60):
        controller.costs.note(64, 64 * STEP_S)
        controller.costs.note(2, 60 * STEP_S)
    verified = 0
    for step in range(1, 40):
        one = choice()
        controller.propose([one], step)
        verified += bool(one.sequence.draft)
    assert verified == 1
    gain_of(controller).grant_trial()
    one = choice()
    controller.propose([one], 40)
    assert one.sequence.draft


def test_while_nothing_may_be_tried_it_is_left_out_of_steps(controller: SpeculationController) -> None:
    plain, grammar, predicted = choice(), choice(matcher=object()), choice(prediction=(1,))
    for gain in (gain_of(controller), controller._prediction.gain):
        assert gain is not None
        gain.resting_until = 10_000
    controller.propose([plain], 100)
    assert [controller.is_asleep(step) for step in (101, 100 + MAX_SLEEP - 1, 100 + MAX_SLEEP)] == [
        True,
        True,
        False,
    ]
    controller.arrive([plain])
    assert controller.is_asleep(101)
    for one in (grammar, predicted):
        controller.propose([plain], 100)
        controller.arrive([plain, one])
        assert not controller.is_asleep(101)


def test_a_prediction_is_tried_whatever_did_not_pay_before(controller: SpeculationController) -> None:
    for gain in (gain_of(controller), controller._prediction.gain):
        assert gain is not None
        gain.resting_until = 10_000
    one = choice(prediction=(5, 6, 7, 8))
    one.sequence.prompt_length = len(one.sequence.tokens)
    controller.arrive([one])
    controller.propose([one], 1)
    assert one.sequence.draft == [5, 6, 7, 8]


def test_before_steps_are_measured_nothing_is_drafted() -> None:
    controller, one = SpeculationController(max_rows=64), choice()
    controller.propose([one], 1)
    assert not one.sequence.draft and controller.plan([slot(one, 0)]) is NO_DRAFTS
