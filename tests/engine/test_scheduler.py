"""The scheduler: order, budget, bounds."""

from __future__ import annotations

import random

import pytest
from scheduling import P, crowd, scheduler, sequence, step

from headrace.engine.scheduler.sequence import Sequence, State
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import ProgramError


def test_prefill_in_chunks_then_decode():
    engine = scheduler(budget=8)
    engine.add(sequence(0, 18))
    assert step(engine) == [(0, 0, 8, False)]
    assert step(engine) == [(0, 8, 8, False)]
    assert step(engine) == [(0, 16, 2, True)]
    assert step(engine) == [(0, 18, 1, True)]
    assert len(engine.running[0].pages) == 5
    assert engine.running[0].pending == 1


def test_the_last_token_of_what_was_put_off_is_computed_again():
    """Where a step does not wait for a mask, nothing is sampled for its sequence."""
    engine = scheduler(budget=8)
    first, second = sequence(0, 4), sequence(1, 4)
    engine.add(first)
    engine.add(second)
    chunks = engine.schedule()
    assert [(c.sequence.id, c.start, c.count, c.samples) for c in chunks] == [
        (0, 0, 4, True),
        (1, 0, 4, True),
    ]
    second.tokens.append(7)
    engine.advance(chunks, put_off={0})
    assert (first.computed, second.computed) == (3, 4)
    assert step(engine) == [(0, 3, 1, True), (1, 4, 1, True)]
    assert (first.computed, second.computed) == (4, 5)


def test_a_scored_prompt_takes_half_of_the_free_rows():
    engine = scheduler(slots=8)
    first, second = sequence(0, 10, scores=True), sequence(1, 10, scores=True)
    first.tokens[:] = second.tokens
    engine.add(first)
    rows: list[int] = []
    done: list[tuple[int, int, int, bool]] = []
    for _ in range(3):
        chunks = engine.schedule()
        rows += [chunk.rows for chunk in chunks]
        done += [(c.start, c.count, c.rows, c.samples) for c in chunks]
        engine.advance(chunks)
    assert done == [(0, 4, 4, False), (4, 4, 4, False), (8, 2, 2, True)]
    assert not first.scores
    # The pages are there, but its scores are not: nothing is taken from the cache.
    engine.finish(first)
    engine.add(second)
    assert step(engine) == [(1, 0, 4, False)]
    assert (second.cached_tokens, second.cache_miss_reason) == (0, "scored")


def test_rows_of_scored_prompts_never_exceed_what_a_step_has():
    rng = random.Random(5)
    engine = scheduler(slots=5, budget=16)
    left = [
        sequence(i, rng.randrange(1, 30), room=rng.randrange(1, 9), scores=rng.random() < 0.5)
        for i in range(60)
    ]
    added: list[Sequence] = []
    while left or any(one.state is not State.FINISHED for one in added):
        if left and rng.random() < 0.4:
            added.append(left.pop())
            engine.add(added[-1])
        chunks = engine.schedule()
        assert sum(chunk.rows for chunk in chunks) <= 5
        engine.advance(chunks)
        for chunk in chunks:
            if chunk.samples:
                chunk.sequence.tokens.append(7)
                if len(chunk.sequence.tokens) == chunk.sequence.max_length:
                    engine.finish(chunk.sequence)


def test_decoders_come_first_and_prefill_takes_what_is_left():
    engine = scheduler(budget=8)
    engine.add(sequence(0, 3))
    engine.add(sequence(1, 20))
    assert step(engine) == [(0, 0, 3, True), (1, 0, 5, False)]
    assert step(engine) == [(0, 3, 1, True), (1, 5, 7, False)]
    engine.add(sequence(2, 4))
    assert step(engine) == [(0, 4, 1, True), (1, 12, 7, False)]
    assert step(engine) == [(0, 5, 1, True), (1, 19, 1, True), (2, 0, 4, True)]


def test_a_more_important_newcomer_is_prefilled_before_a_running_one():
    engine = scheduler(budget=8)
    engine.add(sequence(0, 20, priority=1))
    step(engine)
    engine.add(sequence(1, 6, priority=0))
    assert step(engine) == [(1, 0, 6, True), (0, 8, 2, False)]


def test_running_prefills_go_in_the_order_of_importance():
    engine = scheduler(budget=8)
    engine.add(sequence(5, 30))
    step(engine)
    engine.add(sequence(1, 12))
    assert step(engine) == [(1, 0, 8, False)]
    assert step(engine) == [(1, 8, 4, True), (5, 8, 4, False)]


def test_slots_bound_the_running_sequences():
    engine = scheduler(slots=2)
    for id in range(3):
        engine.add(sequence(id, 4))
    step(engine)
    assert [s.id for s in engine.running] == [0, 1]
    engine.finish(engine.running[0])
    step(engine)
    assert [s.id for s in engine.running] == [1, 2]


def test_priority_then_arrival_decide_the_order():
    engine = scheduler()
    engine.add(sequence(0, 2, arrival_s=0.0, priority=1))
    engine.add(sequence(1, 2, arrival_s=2.0, priority=0))
    engine.add(sequence(2, 2, arrival_s=1.0, priority=0))
    assert [s.id for s in engine.waiting] == [2, 1, 0]
    assert [chunk[0] for chunk in step(engine)] == [2, 1, 0]


def test_no_starvation_a_sequence_is_overtaken_only_within_its_classes_ageing():
    """A class 2 sequence under a flood of class 0: overtaken by those of the first 2 × ageing_s only."""
    engine = scheduler(slots=1, ageing_s=10.0)
    engine.add(sequence(0, 2, arrival_s=0.0, priority=2))
    served: list[float] = []
    now_s = 0.0
    while engine.waiting:
        now_s += 0.5
        engine.add(sequence(int(now_s * 2), 2, arrival_s=now_s, priority=0))
        step(engine)
        served.append(engine.running[0].arrival_s)
        if engine.running[0].id == 0:
            break
        engine.finish(engine.running[0])
    assert served[-1] == 0.0
    assert max(served[:-1]) == pytest.approx(20.0, abs=0.5)


@pytest.mark.parametrize(
    ("tokens", "room"), [(0, 8), (4, -1), (4, 64 * P)], ids=["empty", "above its limit", "never fits"]
)
def test_what_can_never_run_is_refused(tokens: int, room: int):
    with pytest.raises(ProgramError, match="refuse before submission"):
        scheduler().add(sequence(0, tokens, room))


def test_can_ever_fit():
    engine = scheduler(pages=4)
    assert engine.can_ever_fit(4 * P)
    assert not engine.can_ever_fit(4 * P + 1)


def test_misuse_is_refused():
    with pytest.raises(ProgramError, match="one token per step"):
        scheduler(budget=7, slots=8)
    engine = scheduler()
    with pytest.raises(ProgramError, match="never added"):
        engine.cancel(sequence(0, 4))
    engine.add(sequence(1, 4))
    engine.advance(engine.schedule())
    with pytest.raises(ProgramError, match="nothing to compute"):
        engine.schedule()


def test_a_step_takes_as_much_prefill_as_it_is_given():
    engine = scheduler(budget=32)
    engine.add(sequence(0, 5))
    step(engine)
    engine.add(sequence(1, 40))
    engine.running[0].draft = [7, 7]
    chunks = engine.schedule(6)
    assert [(c.sequence.id, c.count, c.drafted) for c in chunks] == [(0, 1, 2), (1, 6, 0)]
    engine.advance(chunks)
    engine.running[0].tokens.append(7)
    assert [(c.sequence.id, c.count) for c in engine.schedule(500)] == [(0, 1), (1, 31)]


def test_class_batch_leaves_places_to_others_and_can_be_held():
    engine = scheduler(slots=8)
    crowd(engine, [5] * 10, room=30, priority=BATCH_PRIORITY)
    step(engine)
    assert engine.running_count == len(engine.running) == 7  # an eighth is for others
    chat = sequence(20, 6, priority=0)
    engine.add(chat)
    chunks = engine.schedule(holds_batch=True)
    assert [(one.sequence.id, one.count) for one in chunks] == [(20, 6)]
    engine.advance(chunks)
    chat.tokens.append(7)
    assert {one[0] for one in step(engine)} == {*range(7), 20}
    engine.finish(chat)
    assert engine.schedule(holds_batch=True) == []
