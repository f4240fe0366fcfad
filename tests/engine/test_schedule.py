"""The scheduler: order, budget, sharing, shortage, bounds."""

from __future__ import annotations

import random

import pytest

from headrace.engine.schedule import MAX_PREEMPTIONS, RESERVE_PAGES, Scheduler
from headrace.engine.sequence import Sequence, State
from headrace.errors import ProgramError

P = 4


def scheduler(
    pages: int = 64, budget: int = 64, slots: int = 8, ageing_s: float = 10.0, recurrent: bool = False
) -> Scheduler:
    return Scheduler(
        page_count=pages,
        token_budget=budget,
        max_sequences=slots,
        ageing_s=ageing_s,
        page_tokens=P,
        recurrent=recurrent,
    )


def sequence(id: int, prompt: int | list[int], room: int = 8, **fields: object) -> Sequence:
    """A prompt of so many tokens of its own (or these), and room for so many more."""
    tokens = [1000 * (id + 1) + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    defaults: dict[str, object] = {"request_key": id, "arrival_s": float(id)}
    return Sequence(
        id=id,
        tokens=tokens,
        prompt_length=len(tokens),
        max_length=len(tokens) + room,
        **(defaults | fields),  # pyright: ignore
    )


def step(engine: Scheduler) -> list[tuple[int, int, int, bool]]:
    """One step, each sampled token is 7: (id, start, count, samples) of every chunk."""
    chunks = engine.schedule()
    engine.advance(chunks)
    for chunk in chunks:
        if chunk.samples:
            chunk.sequence.tokens.append(7)
    return [(c.sequence.id, c.start, c.count, c.samples) for c in chunks]


def test_prefill_in_chunks_then_decode():
    engine = scheduler(budget=8)
    engine.add(sequence(0, 18))
    assert step(engine) == [(0, 0, 8, False)]
    assert step(engine) == [(0, 8, 8, False)]
    assert step(engine) == [(0, 16, 2, True)]
    assert step(engine) == [(0, 18, 1, True)]
    assert len(engine.running[0].pages) == 5
    assert engine.running[0].pending == 1


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
    assert (second.cached_tokens, second.miss_reason) == (0, "scored")


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


def test_a_prompt_that_was_computed_is_shared():
    engine = scheduler()
    engine.add(sequence(0, range(10)))
    step(engine)
    engine.add(sequence(1, range(11)))
    engine.add(sequence(2, range(11), salt="other"))
    assert step(engine) == [(0, 10, 1, True), (1, 8, 3, True), (2, 0, 11, True)]
    first, second, third = engine.running
    assert (second.cached_tokens, second.miss_reason) == (8, None)
    assert (third.cached_tokens, third.miss_reason) == (0, "cold")
    assert first.pages[:2] == second.pages[:2]
    assert first.pages[2] != second.pages[2]


def test_generated_pages_are_shared_too():
    engine = scheduler()
    engine.add(sequence(0, range(3)))
    for _ in range(6):
        step(engine)
    tokens = engine.running[0].tokens[:8]
    engine.finish(engine.running[0])
    engine.add(sequence(1, [*tokens, 5]))
    assert step(engine) == [(1, 8, 1, True)]


def test_in_flight_when_the_prefix_is_being_computed():
    engine = scheduler(budget=8, slots=8)
    engine.add(sequence(0, range(20)))
    step(engine)
    engine.add(sequence(1, range(19), priority=-1))
    engine.add(sequence(2, [*range(8), *range(50, 56)], priority=-1))
    engine.add(sequence(3, range(8), priority=-1))
    engine.add(sequence(4, range(12), salt="other", priority=-1))
    for _ in range(6):
        step(engine)
    reasons = {s.id: (s.cached_tokens, s.miss_reason) for s in engine.running}
    assert reasons[1] == (8, "in_flight")
    assert reasons[3] == (4, None)
    assert reasons[4] == (0, "cold")
    assert reasons[2][1] == "diverged"


def test_not_in_flight_when_only_the_missing_page_is_alike():
    engine = scheduler(budget=8)
    engine.add(sequence(0, range(4)))
    step(engine)
    engine.add(sequence(1, [*range(50, 54), *range(4, 40)]))
    step(engine)
    engine.add(sequence(2, range(12), priority=-1))
    step(engine)
    assert engine.running[0].miss_reason == "partial_page"
    assert engine.running[0].cached_tokens == 4


def test_without_cache_nothing_is_read_or_fed():
    engine = scheduler()
    engine.add(sequence(0, range(12)))
    step(engine)
    engine.add(sequence(1, range(12), cache=False))
    assert step(engine)[1:] == [(1, 0, 12, True)]
    private = engine.running[1]
    assert (private.cached_tokens, private.miss_reason) == (0, "disabled")
    free = engine.free_pages
    engine.finish(private)
    assert engine.free_pages == free + 3  # 12 tokens, nothing kept


@pytest.mark.parametrize("cache", [True, False])
def test_choices_share_the_prompt(cache: bool):
    engine = scheduler(budget=8)
    for choice in range(3):
        engine.add(sequence(choice, range(18), request_key="one", choice=choice, cache=cache))
    assert step(engine) == [(0, 0, 8, False)]
    assert step(engine) == [(0, 8, 8, False)]  # the pages that can be shared are there
    assert step(engine) == [(0, 16, 2, True), (1, 16, 2, True), (2, 16, 2, True)]
    pages = [s.pages[:4] for s in engine.running]
    assert pages[0] == pages[1] == pages[2]
    assert len({s.pages[4] for s in engine.running}) == 3
    assert engine.running[0].miss_reason == ("cold" if cache else "disabled")
    for one in engine.running:
        engine.finish(one)
    assert engine.available_pages == 64
    assert engine.free_pages == (60 if cache else 64)


def test_another_choice_takes_over_when_the_first_is_cancelled():
    engine = scheduler(budget=8)
    for choice in range(2):
        engine.add(sequence(choice, range(18), request_key="one"))
    engine.add(sequence(2, 4))
    step(engine)
    engine.cancel(engine.running[0])
    assert step(engine) == [(1, 8, 8, False)]


def test_choices_do_not_hold_up_those_behind():
    engine = scheduler(budget=16)
    for choice in range(2):
        engine.add(sequence(choice, range(8), request_key="one"))
    engine.add(sequence(2, 4))
    assert step(engine) == [(0, 0, 8, True), (2, 0, 4, True)]


def test_admission_keeps_a_reserve_for_the_running():
    engine = scheduler(pages=2 + RESERVE_PAGES + 2)
    engine.add(sequence(0, 8, room=100 - 8 - 68))
    engine.add(sequence(1, 8, room=8))
    step(engine)
    assert [s.id for s in engine.waiting] == [1]  # 2 + 4 for the first, 2 + 2 for the second: 10 of 8
    engine.add(sequence(2, 1, room=1, priority=-9))
    step(engine)
    assert [s.id for s in engine.waiting] == [1]
    engine.finish(engine.running[-1])
    step(engine)
    assert [s.id for s in engine.waiting] == []


def test_who_does_not_fit_stops_those_behind():
    engine = scheduler(pages=10)
    engine.add(sequence(0, 20, room=4))
    engine.add(sequence(1, 20, room=4))
    engine.add(sequence(2, 2, room=1))
    step(engine)
    step(engine)
    assert [s.id for s in engine.waiting] == [1, 2]


def test_a_blocked_one_is_tried_again_when_its_prefix_was_computed():
    engine = scheduler(pages=10, budget=8)
    engine.add(sequence(0, range(24), room=4))
    step(engine)
    second = sequence(1, range(24), room=4, priority=-1)
    engine.add(second)
    for _ in range(2):  # 2 pages are shared; the other 5 of each are not there
        assert [chunk[0] for chunk in step(engine)] == [0]
    assert step(engine) == [(0, 24, 1, True), (1, 20, 4, True)]
    assert (second.cached_tokens, second.miss_reason) == (20, None)


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


def crowd(engine: Scheduler, lengths: list[int], room: int, **fields: object) -> list[Sequence]:
    made = [sequence(id, length, room, **fields) for id, length in enumerate(lengths)]
    for one in made:
        engine.add(one)
    return made


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
    assert second.cached_tokens == 0 and second.miss_reason == "cold"  # of the first admission
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


def test_a_prefill_sits_out_where_no_page_is_left():
    engine = scheduler(pages=22, budget=2, slots=2)
    decoding = sequence(0, 2, room=80)
    engine.add(decoding)
    while len(decoding.tokens) < 14:
        step(engine)
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
    engine.add(decoding)
    while len(decoding.tokens) < 14:
        step(engine)
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
    engine.hold(first)
    assert (first.state, first.pages) == (State.HELD, [])
    assert step(engine) == [(1, 0, 5, True)]
    engine.hold(second)
    assert engine.idle and engine.schedule() == [] and engine.available_pages == 64
    engine.resume(second)
    engine.resume(first)  # it is the more important one, and its full pages are there
    assert step(engine) == [(0, 8, 2, True)]
    assert (first.cached_tokens, first.preemptions) == (0, 0)
    engine.hold(second)
    assert not engine.waiting
    engine.finish(second)
    for act in (engine.hold, engine.resume):
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


def verify(engine: Scheduler, right: int) -> list[tuple[int, int, int]]:
    """One step in which so many drafted tokens turn out right, then a 7 comes: (id, tokens, drafted)."""
    chunks = engine.schedule()
    for chunk in chunks:
        if chunk.samples:
            chunk.sequence.tokens += [*chunk.sequence.draft[: min(right, chunk.drafted)], 7]
    engine.advance(chunks)
    return [(c.sequence.id, c.count, c.drafted) for c in chunks]


def test_of_a_draft_what_is_right_is_kept():
    engine = scheduler()
    one = sequence(0, 6, room=20)
    engine.add(one)
    step(engine)
    one.draft = [8, 9, 10]
    assert verify(engine, 1) == [(0, 1, 3)]
    assert (one.tokens[6:], one.computed) == ([7, 8, 7], 8)
    one.draft = []
    assert verify(engine, 0) == [(0, 1, 0)]
    assert one.computed == 9


def test_drafts_get_the_tokens_rows_and_pages_that_are_left():
    engine = Scheduler(
        page_count=64, token_budget=12, max_sequences=3, ageing_s=10, page_tokens=P, max_rows=8
    )
    first, second, long = sequence(0, 4, room=20), sequence(1, 4, room=20), sequence(2, 30)
    engine.add(first)
    engine.add(second)
    step(engine)
    first.draft, second.draft = [8] * 4, [8] * 4
    assert verify(engine, 0) == [(0, 1, 4), (1, 1, 2)]  # eight rows of logits
    engine.add(long)
    long.draft = [8] * 4
    assert verify(engine, 0) == [(0, 1, 0), (1, 1, 0), (2, 10, 0)]  # twelve tokens
    engine.finish(long)
    first.draft = [8] * 30
    second.draft = []
    assert verify(engine, 30) == [(0, 1, 6), (1, 1, 0)]
    first.draft = [8] * 30
    assert verify(engine, 30) == [(0, 1, 6), (1, 1, 0)]
    first.draft = [8] * 30
    # 21 of 24 tokens: two may follow the one that is drawn at their end, the last of which is not computed.
    assert len(first.tokens) == 21
    assert verify(engine, 30)[0] == (0, 1, 2)


def test_a_draft_takes_no_page_that_others_may_need():
    engine = scheduler(pages=13)
    first, second = crowd(engine, [5, 5], room=40)
    step(engine)
    while engine.available_pages > 3:
        step(engine)
    first.draft = [8] * 12
    slots = len(first.pages) * P - first.computed - 1
    assert verify(engine, 0)[0] == (0, 1, slots + P)  # one page, so that each has one left
    assert engine.available_pages >= 2 and not second.preemptions


def test_a_draft_that_gets_nothing_waits():
    engine = Scheduler(page_count=64, token_budget=8, max_sequences=2, ageing_s=10, page_tokens=P, max_rows=4)
    first, second = sequence(0, 4, room=20), sequence(1, 4, room=20)
    engine.add(first)
    engine.add(second)
    step(engine)
    first.draft, second.draft = [8] * 4, [8] * 4
    assert verify(engine, 0) == [(0, 1, 2), (1, 1, 0)]


def test_a_scored_prompt_has_no_draft():
    engine = scheduler()
    one = sequence(0, 3, scores=True)
    one.draft = [8, 9]
    engine.add(one)
    [chunk] = engine.schedule()
    assert (chunk.count, chunk.rows, chunk.drafted) == (3, 3, 0)


@pytest.mark.parametrize(
    ("tokens", "room"), [(0, 8), (4, -1), (4, 64 * P)], ids=["empty", "above its limit", "never fits"]
)
def test_what_can_never_run_is_refused(tokens: int, room: int):
    with pytest.raises(ProgramError, match="refuse at the door"):
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


def test_running_sequences_have_slots_of_their_own_and_give_them_back():
    engine = scheduler(slots=2)
    first, second, third = (sequence(i, 5) for i in range(3))
    for one in (first, second, third):
        engine.add(one)
    step(engine)
    assert {first.state_slot, second.state_slot} == {0, 1} and third.state_slot == -1
    freed = first.state_slot
    engine.finish(first)
    step(engine)
    assert (first.state_slot, third.state_slot) == (-1, freed)


def test_a_recurrent_model_takes_nothing_from_the_prefix_tree_and_says_so():
    engine = scheduler(recurrent=True)
    prompt = list(range(12))
    first = sequence(0, prompt)
    engine.add(first)
    step(engine)
    engine.finish(first)
    again, disabled = sequence(1, prompt), sequence(2, prompt, cache=False)
    engine.add(again)
    engine.add(disabled)
    assert step(engine) == [(1, 0, 12, True), (2, 0, 12, True)]
    assert (again.cached_tokens, again.miss_reason) == (0, "recurrent_state")
    assert (disabled.cached_tokens, disabled.miss_reason) == (0, "disabled")
    engine.finish(again)
    engine.finish(disabled)
    assert engine.free_pages == 64


def test_choices_of_a_recurrent_model_compute_their_prompts_side_by_side():
    engine = scheduler(recurrent=True)
    for choice in range(3):
        engine.add(sequence(choice, list(range(9)), request_key="one", choice=choice))
    assert step(engine) == [(0, 0, 9, True), (1, 0, 9, True), (2, 0, 9, True)]


def test_a_preempted_sequence_of_a_recurrent_model_starts_again():
    engine = scheduler(pages=12, slots=2, recurrent=True)
    engine.add(sequence(0, 8, room=20))
    engine.add(sequence(1, 8, room=20))
    step(engine)
    assert len(engine.running) == 2
    while not engine.waiting:
        step(engine)
    [running], [waiting] = engine.running, engine.waiting
    assert (waiting.computed, waiting.state_slot, waiting.preemptions) == (0, -1, 1)
    engine.finish(running)
    tokens = len(waiting.tokens)
    assert step(engine) == [(1, 0, tokens, True)]
