"""The scheduler where pages run out: eviction, preemption, cancelling, holding."""

from __future__ import annotations

import random

import pytest
from scheduling import P, crowd, scheduler, sequence, step

from headrace.engine.scheduler.scheduler import MAX_PREEMPTIONS, Scheduler
from headrace.engine.scheduler.sequence import Sequence, State


def test_shortage_evicts_first():
    engine = scheduler(pages=8)
    engine.add(sequence(0, 24, room=4))
    step(engine)
    engine.finish(engine.running[0])
    assert (engine.free_pages, engine.available_pages) == (2, 8)
    engine.add(sequence(1, 24, room=4))
    step(engine)
    assert (engine.free_pages, engine.available_pages) == (0, 2)
    engine.add(sequence(2, range(1000, 1008)))
    assert engine.running[0].preemptions == 0


def test_shortage_preempts_the_least_important_and_keeps_its_pages():
    engine = scheduler(pages=12)
    first, second = crowd(engine, [5, 5], room=40)
    while not second.preemptions:
        step(engine)
    assert (second.state, second.pages, second.computed) == (State.WAITING, [], 0)
    assert first.preemptions == 0 and first.arrival_s < second.arrival_s
    generated = len(second.tokens)
    engine.finish(first)
    step(engine)
    assert second.state is State.RUNNING
    assert second.cached_tokens == 0 and second.cache_miss_reason == "cold"  # of the first admission
    assert second.computed == generated
    step(engine)
    assert len(second.tokens) == generated + 2


def test_the_least_important_sits_out_where_no_page_is_left():
    """It neither preempts those before it nor loses its pages."""
    engine = scheduler(pages=17)
    first, second = crowd(engine, [7, 4], room=40)
    step(engine)
    while second.computed < P * len(second.pages) or engine.available_pages:
        step(engine)
    assert [chunk[0] for chunk in step(engine)] == [0]
    assert (second.state, second.preemptions) == (State.RUNNING, 0)
    engine.finish(first)
    assert [chunk[0] for chunk in step(engine)] == [1]


def decode(engine: Scheduler, one: Sequence, length: int) -> None:
    """Add it, and go on until it has so many tokens."""
    engine.add(one)
    while len(one.tokens) < length:
        step(engine)


def test_a_prefill_sits_out_where_no_page_is_left():
    engine = scheduler(pages=22, budget=2, slots=2)
    decoding = sequence(0, 2, room=80)
    decode(engine, decoding, 14)
    prefilling = sequence(1, 40, room=30)
    engine.add(prefilling)
    chunks = step(engine)
    while len(chunks) == 2:
        chunks = step(engine)
    assert [chunk[0] for chunk in chunks] == [0]
    assert (prefilling.state, prefilling.computed) == (State.RUNNING, 36)


def test_one_of_two_with_drafts_is_preempted_before_its_turn():
    engine = scheduler(pages=12)
    first, second = crowd(engine, [5, 5], room=40)
    step(engine)
    while first.computed < 24:
        step(engine)
    assert (engine.available_pages, first.pending, second.pending) == (0, 1, 1)
    first.tokens += [8, 9]
    second.tokens += [8, 9]
    assert [(c.sequence.id, c.count) for c in engine.schedule()] == [(0, 3)]
    assert (second.state, second.preemptions) == (State.WAITING, 1)


def test_after_the_last_preemption_all_that_may_be_needed_is_kept_back():
    """Beside one that was preempted so often, only who can grow to the end beside it runs."""
    engine = scheduler(pages=40)
    often = sequence(0, 4, room=76)  # 20 pages
    often.preemptions = MAX_PREEMPTIONS
    engine.add(often)
    engine.add(sequence(1, 4, room=80))  # 21 pages
    step(engine)
    assert [s.id for s in engine.running] == [0]
    engine.add(sequence(2, 4, room=76, priority=-1))  # 20 pages
    step(engine)
    assert [s.id for s in engine.running] == [2, 0]
    while engine.running:
        step(engine)
        for one in engine.running:
            assert one.pending == 1, "sat out"
            if len(one.tokens) == one.max_length:
                engine.finish(one)
        if State.FINISHED is often.state:
            break
    assert often.preemptions == MAX_PREEMPTIONS


def test_a_victim_that_was_planned_is_taken_out_of_the_step():
    """A decoder, planned first, loses its pages to the long prefill of a more important one."""
    engine = scheduler(pages=22, budget=2, slots=2)
    decoding = sequence(1, 2, room=80)
    decode(engine, decoding, 14)
    needy = sequence(0, 40, room=30)
    engine.add(needy)
    chunks = [(1, 13, 1, True)]
    while chunks[0][0] == 1:
        assert decoding.preemptions == 0
        chunks = step(engine)
    assert chunks == [(0, 36, 1, False)]
    assert (decoding.state, decoding.preemptions) == (State.WAITING, 1)


def test_cancel_frees_every_page_at_once_wherever_it_stands():
    engine = scheduler(budget=16, slots=4)
    waiting, prefilling, decoding = sequence(3, 4), sequence(2, 40), sequence(1, 4, cache=False)
    engine.add(decoding)
    step(engine)
    engine.add(prefilling)
    step(engine)
    engine.add(waiting)
    for one in (waiting, prefilling, decoding):
        engine.cancel(one)
        assert (one.state, one.pages) == (State.FINISHED, [])
        engine.cancel(one)  # a second time changes nothing
    assert engine.available_pages == 64
    assert not engine.running and not engine.waiting
    assert engine.schedule() == []


def test_who_is_held_gives_way_and_goes_on_where_it_was():
    engine = scheduler(slots=1)
    first, second = sequence(0, 9), sequence(1, 5)
    engine.add(first)
    engine.add(second)
    step(engine)
    engine.pause(first)
    assert (first.state, first.pages) == (State.PAUSED, [])
    assert step(engine) == [(1, 0, 5, True)]
    engine.pause(second)
    assert engine.idle and engine.schedule() == [] and engine.available_pages == 64
    engine.resume(second)
    engine.resume(first)  # it is the more important one, and its full pages are there
    assert step(engine) == [(0, 8, 2, True)]
    assert (first.cached_tokens, first.preemptions) == (0, 0)
    engine.pause(second)
    assert not engine.waiting
    engine.finish(second)
    for act in (engine.pause, engine.resume):
        act(second)
        assert second.state is State.FINISHED


def test_cancel_between_schedule_and_advance():
    engine = scheduler()
    one = sequence(0, 9)
    engine.add(one)
    chunks = engine.schedule()
    engine.cancel(one)
    engine.advance(chunks)
    assert (one.computed, engine.free_pages) == (0, 64)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("known_length", [True, False])
def test_kv_memory_at_a_tenth_of_demand(seed: int, known_length: bool):
    """Fault F5: all complete, each preempted at most 4 times, no page is lost.

    `known_length`: max_tokens is what is generated; else it is whatever fits, as without max_tokens.
    """
    generator = random.Random(seed)
    prompts = [generator.randint(1, 40) for _ in range(120)]
    outputs = [generator.randint(1, 240) for _ in range(120)]
    demand = sum(-(-(a + b) // P) for a, b in zip(prompts, outputs, strict=True))
    engine = scheduler(pages=demand // 10, budget=128, slots=120)
    room = (demand // 10) * P
    made = [
        sequence(id, prompt, outputs[id] if known_length else room - prompt, priority=generator.randint(0, 1))
        for id, prompt in enumerate(prompts)
    ]
    for one in made:
        engine.add(one)
    computed = 0
    while engine.running or engine.waiting:
        chunks = engine.schedule()
        assert chunks
        computed += sum(chunk.count for chunk in chunks)
        engine.advance(chunks)
        for chunk in chunks:
            one = chunk.sequence
            if chunk.samples:
                one.tokens.append(generator.randint(0, 1))
                if len(one.tokens) == prompts[one.id] + outputs[one.id]:
                    engine.finish(one)
    assert all(one.state is State.FINISHED for one in made)
    assert engine.available_pages == demand // 10
    assert max(one.preemptions for one in made) <= MAX_PREEMPTIONS
    assert sum(one.preemptions for one in made) > 0  # there was a shortage
    print(
        f"preemptions {sum(one.preemptions for one in made)}, at most {max(one.preemptions for one in made)} "
        f"each, computed {computed / sum(a + b - 1 for a, b in zip(prompts, outputs, strict=True)):.2f} x"
    )
