"""What a step may cost: the fit of its seconds, the deadlines of streams, turns between models."""

from __future__ import annotations

import math
import random

import pytest
from scheduling import sequence

from headrace.engine.pacing import (
    BATCH_PAUSE_S,
    BATCH_STEP_S,
    MIN_PREFILL_TOKENS,
    MIN_SHARE,
    SHORT_STEP_S,
    STALE_S,
    URGENT_S,
    PaceOptions,
    Pacing,
    work_of,
)
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence
from headrace.engine.step_times import WINDOW, StepTimes, StepWork, WidthTimes, attended
from headrace.engine.turns import BATCH_PRIORITY, NoTurns, Tier, tier_of

A, B, C, D = 2e-3, 4e-4, 5e-4, 1e-8  # a model that takes 0.2 s for 512 tokens of a prompt
MOST = 512


def seconds_of(work: StepWork) -> float:
    return A + B * work.prefill + C * work.rows + D * work.pairs


def fitted(noise: float = 0.0) -> StepTimes:
    times, draw = StepTimes(), random.Random(3)
    for index in range(64):
        work = StepWork(
            draw.choice([100, 300, 512]) if index % 2 else 0, draw.randint(1, 16), draw.random() * 3e5
        )
        times.note(work, seconds_of(work) * (1 + noise * draw.random()))
    return times


def stream(id: int = 0, **fields: object) -> Sequence:
    found = sequence(id, 100, **fields)  # pyright: ignore[reportArgumentType]
    found.computed = 99
    return found


def prompt(id: int = 1, tokens: int = 1500, **fields: object) -> Sequence:
    return sequence(id, tokens, **fields)  # pyright: ignore[reportArgumentType]


def pacing(**options: object) -> Pacing:
    made = Pacing(PaceOptions(**options))  # type: ignore[arg-type]
    made.widths = WidthTimes(fitted())
    return made


@pytest.mark.parametrize("work", [StepWork(512, 0, 2e5), StepWork(0, 4, 4000), StepWork(64, 16, 1e5)])
def test_seconds_are_fitted(work: StepWork) -> None:
    assert fitted().seconds(work) == pytest.approx(seconds_of(work), rel=0.01)
    assert fitted(noise=0.2).seconds(work) == pytest.approx(seconds_of(work), rel=0.3)


def test_a_disturbed_step_counts_for_little() -> None:
    times = fitted()
    times.note(StepWork(512, 1, 1e5), 60.0)
    for _ in range(8):
        times.note(StepWork(0, 1, 1e3), seconds_of(StepWork(0, 1, 1e3)))
    work = StepWork(512, 4, 1e5)
    assert times.seconds(work) < 1.5 * seconds_of(work)


def test_nothing_is_negative_and_nothing_known_is_nothing() -> None:
    times = StepTimes()
    times.note(StepWork(0, 1, 10), 0.0)  # of a clock that stands still
    assert not times.known
    for prefill, rows, seconds in ((512, 1, 0.1), (256, 16, 0.05), (128, 32, 0.02)):
        times.note(StepWork(prefill, rows, attended(0, prefill)), seconds)
    assert times.known
    for work in (StepWork(0, 0, 0), StepWork(0, 100, 0), StepWork(1, 0, 1e6)):
        assert times.seconds(work) >= 0


@pytest.mark.parametrize("start", [0, 4000])
def test_tokens_that_fit_take_the_time_that_there_is(start: int) -> None:
    times, rest = fitted(), StepWork(0, 4, 4000)
    count = times.prefill_tokens(0.05, rest, start, MOST)
    assert 16 < count < MOST
    with_them = StepWork(count, rest.rows, rest.pairs + attended(start, count))
    assert times.seconds(with_them) == pytest.approx(0.05, rel=0.02)
    assert times.prefill_tokens(10.0, rest, start, MOST) == MOST
    assert times.prefill_tokens(1e-4, rest, start, MOST) == 0


def test_without_streams_and_other_models_nothing_is_cut() -> None:
    assert pacing().prefill_tokens([prompt()], waited_s=0, contended=False, most=MOST) == MOST
    assert Pacing(PaceOptions()).prefill_tokens([stream()], waited_s=0, contended=True, most=MOST) == MOST


def test_a_step_ends_before_the_deadline_of_its_streams() -> None:
    paced, running = pacing(tpot_s=0.05), [stream(), prompt()]
    tokens = paced.prefill_tokens(running, waited_s=0.0, contended=False, most=MOST)
    assert seconds_of(StepWork(tokens, 1, 100 + attended(0, tokens))) == pytest.approx(0.05, rel=0.02)
    later = paced.prefill_tokens(running, waited_s=0.02, contended=False, most=MOST)
    assert MIN_PREFILL_TOKENS < later < tokens
    late = paced.prefill_tokens(running, waited_s=1.0, contended=False, most=MOST)
    assert late == MIN_PREFILL_TOKENS  # the prompt progresses all the same


def test_slow_steps_get_as_much_prefill_again() -> None:
    paced = pacing(tpot_s=0.001)
    running = [*(stream(id) for id in range(32)), prompt(99)]
    tokens = paced.prefill_tokens(running, waited_s=0.0, contended=False, most=MOST)
    alone = seconds_of(StepWork(0, 32, 3200))
    assert seconds_of(StepWork(tokens, 32, 3200)) == pytest.approx(MIN_SHARE * alone, rel=0.1)


def test_without_targets_time_is_shared_by_heads() -> None:
    alone = seconds_of(StepWork(0, 16, 1600))

    def step_s(first: Sequence, prompts: int, admissible: int = 0, **options: object) -> float:
        running = [first, *(stream(id) for id in range(1, 16)), *(prompt(20 + id) for id in range(prompts))]
        tokens = pacing(**options).prefill_tokens(
            running, admissible=admissible, waited_s=1.0, contended=False, most=MOST
        )
        return seconds_of(StepWork(tokens, 16, 1600 + attended(0, tokens)))

    assert step_s(stream(0), 48) == pytest.approx(4 * alone, rel=0.1)
    assert step_s(stream(0), 1, admissible=47) == pytest.approx(4 * alone, rel=0.1)
    least = step_s(stream(0), 1)
    assert least == pytest.approx(MIN_SHARE * alone, rel=0.1)
    assert step_s(stream(0), 48, tpot_s=0.001) == least
    assert step_s(stream(0, tpot_s=0.001), 48) == least
    assert step_s(stream(0, priority=-1), 48) == least


def test_streams_of_a_batch_wait() -> None:
    running = [stream(priority=BATCH_PRIORITY), prompt()]
    assert pacing().prefill_tokens(running, waited_s=0, contended=False, most=MOST) == MOST


def test_beside_another_model_a_step_is_a_turn_at_most() -> None:
    tokens = pacing(max_turn_s=0.02).prefill_tokens([prompt()], waited_s=0, contended=True, most=MOST)
    assert seconds_of(StepWork(tokens, 0, attended(0, tokens))) == pytest.approx(0.02, rel=0.05)
    only_streams = pacing(max_turn_s=0.02).prefill_tokens([stream()], waited_s=0, contended=True, most=MOST)
    assert MIN_PREFILL_TOKENS <= only_streams < MOST


def test_classes_of_priorities() -> None:
    assert [tier_of(priority) for priority in (-1, 0, 99, BATCH_PRIORITY)] == [
        Tier.INTERACTIVE,
        Tier.STANDARD,
        Tier.STANDARD,
        Tier.BATCH,
    ]
    assert tier_of(0, standard=Tier.INTERACTIVE) is Tier.INTERACTIVE


def test_what_a_loop_asks_for() -> None:
    paced = pacing(tpot_s=0.03, ttft_s=0.2)
    ask = paced.ask([stream(), prompt(arrival_s=7.0)], 7.1)
    assert (ask.tier, ask.deadline_s) == (Tier.INTERACTIVE, pytest.approx(7.13))
    assert paced.ask([prompt(arrival_s=7.0)], 9.0).deadline_s == pytest.approx(7.2)
    batch = pacing().ask([stream(priority=BATCH_PRIORITY)], 7.0)
    assert (batch.tier, batch.deadline_s) == (Tier.BATCH, math.inf)
    assert pacing().ask([stream()], 7.0).tier is Tier.STANDARD


def test_steps_are_learned_from() -> None:
    paced = Pacing(PaceOptions())
    one, other = prompt(0, 600), stream(1)
    for _ in range(2):
        chunks = [ScheduledChunk(one, 0, 512, False), ScheduledChunk(other, 99, 1, True)]
        paced.learn(work_of(chunks), 0.2, 1.0)
    assert paced.times.known
    assert paced.times.seconds(StepWork(512, 1, attended(0, 512) + 100)) == pytest.approx(0.2, rel=0.01)


def test_interactive_streams_of_large_models_wait_for_all_cores() -> None:
    """Others, and those whose steps are short, take a part."""
    large, small = pacing(), pacing()
    times = StepTimes()
    times.note(StepWork(0, 1, 100), 0.5 * SHORT_STEP_S)
    small.widths = WidthTimes(times)
    streams = [stream(id, priority=-1) for id in range(8)]
    assert large.widths.shortest_s(StepWork(0, 8, 800)) > SHORT_STEP_S
    assert large.ask(streams, 0.0).whole
    assert large.ask(streams, 0.0).predicted_s == pytest.approx(A + 8 * C, rel=0.1)
    assert not small.ask(streams, 0.0).whole
    assert not large.ask([stream(1)], 0.0).whole
    assert not Pacing(PaceOptions()).widths.now.any_known
    assert Pacing(PaceOptions()).ask(streams, 0.0).whole  # nothing is known


def test_each_width_has_times_of_its_own() -> None:
    widths, work = WidthTimes(fitted()), StepWork(0, 4, 4000)
    wide_s = widths.now.seconds(work)
    widths.use(1)
    assert widths.now.known and widths.now.seconds(work) == pytest.approx(wide_s)
    for _ in range(WINDOW):
        widths.now.note(work, 2 * wide_s)
    assert widths.now.seconds(work) == pytest.approx(2 * wide_s, rel=0.1)
    assert widths.shortest_s(work) == pytest.approx(wide_s)
    widths.use(0)
    assert widths.now.seconds(work) == pytest.approx(wide_s)


def test_a_loop_alone_computes_at_once() -> None:
    turns = NoTurns()
    turns.join()
    assert turns.begin(pacing().ask([], 0.0)) == 0.0
    turns.end(again=True)
    turns.leave()
    assert (turns.contended, turns.waiting) == (False, False)


def test_a_first_token_after_the_target_is_predicted() -> None:
    paced = pacing(ttft_s=0.5)
    newcomer = prompt(9, 600)
    assert paced.late_s(newcomer, [], [], MOST) == 0.0
    behind = [prompt(1, 2000, priority=5)]
    assert paced.late_s(newcomer, [], behind, MOST) == 0.0
    late_s = paced.late_s(newcomer, [stream(), prompt(2, 1000)], [prompt(1, 2000)], MOST)
    assert 3600 * B < late_s < 12 * 3600 * B
    batch = prompt(9, 6000, priority=BATCH_PRIORITY)
    assert paced.late_s(batch, [], [], MOST) == pacing().late_s(prompt(9, 6000), [], [], MOST) == 0.0


def test_a_short_prompt_is_predicted_by_its_own_tokens() -> None:
    """Not by those that a step may have."""
    paced = pacing(ttft_s=1e-9)
    short, long = paced.late_s(prompt(1, 32), [], [], MOST), paced.late_s(prompt(1, MOST), [], [], MOST)
    assert 0 < short < long / 4


def test_what_was_measured_long_ago_is_stale() -> None:
    paced = Pacing(PaceOptions())
    assert paced.is_stale(0.0)
    paced.learn(work_of([ScheduledChunk(prompt(0, 600), 0, 512, False)]), 0.2, 100.0)
    assert not paced.is_stale(100.0 + STALE_S) and paced.is_stale(101.0 + STALE_S)


def test_only_a_target_of_the_first_token_refuses() -> None:
    options = [
        PaceOptions(slo_policy="refuse"),
        PaceOptions(slo_policy="refuse", ttft_s=0.1),
        PaceOptions(ttft_s=0.1),
    ]
    assert [one.refuses() for one in options] == [False, True, False]
    assert [one.refuses(0.1) for one in options] == [True, True, False]


def test_a_request_has_targets_of_its_own() -> None:
    paced = pacing(ttft_s=0.5, tpot_s=0.03)
    newcomer = prompt(9, 600)
    newcomer.ttft_s = 1e-6
    assert paced.late_s(newcomer, [], [], MOST) > 1e-6
    newcomer.ttft_s = 1000.0
    assert paced.late_s(newcomer, [stream(), prompt(2, 1000)], [prompt(1, 2000)], MOST) == 0.0
    assert pacing().late_s(newcomer, [], [], MOST) == 0.0
    newcomer.ttft_s = 1e-6
    assert pacing().late_s(newcomer, [], [], MOST) > 1e-6

    def due_s(urgent: bool, ttft_s: float | None = None, tpot_s: float | None = None) -> tuple[float, Tier]:
        one = prompt(arrival_s=7.0) if tpot_s is None else stream()
        one.ttft_s, one.tpot_s, one.urgent = ttft_s, tpot_s, urgent
        ask = paced.ask([one], 7.0)
        return round(ask.deadline_s - 7.0, 6), ask.tier

    assert due_s(True, ttft_s=0.1) == (0.1, Tier.INTERACTIVE)
    assert due_s(False, ttft_s=0.1) == (0.5, Tier.INTERACTIVE)  # no tighter than the model's
    assert due_s(False, ttft_s=0.9)[0] == 0.9
    assert due_s(True, tpot_s=0.01)[0] == 0.01
    assert due_s(False, tpot_s=0.01)[0] == 0.03
    assert due_s(False, tpot_s=0.2)[0] == 0.2
    assert pacing().ask([newcomer], 0.0).tier is Tier.INTERACTIVE
    newcomer.urgent = False
    assert pacing().ask([newcomer], 0.0).tier is Tier.STANDARD


def test_a_prompt_of_several_choices_is_waited_for_once() -> None:
    paced = pacing(ttft_s=1e-6)
    newcomer, several = prompt(9, 600), [prompt(1, 2000) for _ in range(64)]
    for one in several:
        one.request_id = "same"
    together = paced.late_s(newcomer, [], several, MOST)
    alone = paced.late_s(newcomer, [], several[:1], MOST)
    assert alone <= together < 2 * alone


def test_class_batch_stands_still_for_others_but_not_for_long() -> None:
    made, batch, chat = pacing(), stream(0, priority=BATCH_PRIORITY), prompt(1)
    assert not made.holds_batch([batch], 1.0)
    assert made.holds_batch([batch, chat], 1.0 + BATCH_PAUSE_S / 2)
    assert not made.holds_batch([batch, chat], 1.01 + BATCH_PAUSE_S)  # it has its step
    assert made.holds_batch([batch, chat], 1.02 + BATCH_PAUSE_S)
    assert not made.holds_batch([chat], 2.0) and not made.holds_batch([], 2.0)


def test_class_batch_alone_leaves_time_to_those_who_were_there_shortly_before() -> None:
    made, batch = pacing(), [prompt(1, priority=BATCH_PRIORITY)]

    def tokens(now_s: float) -> int:
        return made.prefill_tokens(batch, waited_s=0, contended=False, most=MOST, now_s=now_s)

    assert tokens(0.0) == MOST
    made.holds_batch([stream()], 10.0)
    short = tokens(10.1)
    assert MIN_PREFILL_TOKENS <= short < MOST
    assert seconds_of(StepWork(short, 0, attended(0, short))) < 2 * max(BATCH_STEP_S, MIN_SHARE * A)
    assert tokens(10.1 + URGENT_S) == MOST
