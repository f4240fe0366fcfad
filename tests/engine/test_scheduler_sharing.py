"""The scheduler: pages that several sequences share, and who waits for whom."""

from __future__ import annotations

import pytest
from scheduling import scheduler, sequence, step

from headrace.engine.scheduler.scheduler import RESERVE_PAGES


def test_a_prompt_that_was_computed_is_shared():
    engine = scheduler()
    engine.add(sequence(0, range(10)))
    step(engine)
    engine.add(sequence(1, range(11)))
    engine.add(sequence(2, range(11), cache_salt="other"))
    assert step(engine) == [(0, 10, 1, True), (1, 8, 3, True), (2, 0, 11, True)]
    first, second, third = engine.running
    assert (second.cached_tokens, second.cache_miss_reason) == (8, None)
    assert (third.cached_tokens, third.cache_miss_reason) == (0, "cold")
    assert first.pages[:2] == second.pages[:2]
    assert first.pages[2] != second.pages[2]


def test_what_would_be_shared_is_asked_without_holding_pages():
    engine = scheduler()
    engine.add(sequence(0, range(10)))
    step(engine)
    free = engine.available_pages
    assert engine.would_match(sequence(1, range(11))) == (8, None)
    assert engine.would_match(sequence(1, range(11), cache_salt="other")) == (0, "cold")
    assert engine.would_match(sequence(1, range(11), cache=False))[1] == "disabled"
    assert engine.available_pages == free and engine.waiting == ()


def test_a_prompt_whose_continuations_are_scored_is_shared_up_to_them():
    engine = scheduler()
    engine.add(sequence(0, range(10)))
    step(engine)
    engine.add(sequence(1, [*range(8), 20, 21], scores=True, continues=True, scored_from=7))
    step(engine)
    assert engine.running[1].cached_tokens == 4  # the page with the first row that is output is computed


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
    engine.add(sequence(4, range(12), cache_salt="other", priority=-1))
    for _ in range(6):
        step(engine)
    reasons = {s.id: (s.cached_tokens, s.cache_miss_reason) for s in engine.running}
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
    assert engine.running[0].cache_miss_reason == "partial_page"
    assert engine.running[0].cached_tokens == 4


def test_without_cache_nothing_is_read_or_fed():
    engine = scheduler()
    engine.add(sequence(0, range(12)))
    step(engine)
    engine.add(sequence(1, range(12), cache=False))
    assert step(engine)[1:] == [(1, 0, 12, True)]
    private = engine.running[1]
    assert (private.cached_tokens, private.cache_miss_reason) == (0, "disabled")
    free = engine.free_pages
    engine.finish(private)
    assert engine.free_pages == free + 3  # 12 tokens, nothing kept


@pytest.mark.parametrize("cache", [True, False])
def test_choices_share_the_prompt(cache: bool):
    engine = scheduler(budget=8)
    for choice in range(3):
        engine.add(sequence(choice, range(18), request_id="one", choice=choice, cache=cache))
    assert step(engine) == [(0, 0, 8, False)]
    assert step(engine) == [(0, 8, 8, False)]  # the pages that can be shared are there
    assert step(engine) == [(0, 16, 2, True), (1, 16, 2, True), (2, 16, 2, True)]
    pages = [s.pages[:4] for s in engine.running]
    assert pages[0] == pages[1] == pages[2]
    assert len({s.pages[4] for s in engine.running}) == 3
    assert engine.running[0].cache_miss_reason == ("cold" if cache else "disabled")
    for one in engine.running:
        engine.finish(one)
    assert engine.available_pages == 64
    assert engine.free_pages == (60 if cache else 64)


def test_another_choice_takes_over_when_the_first_is_cancelled():
    engine = scheduler(budget=8)
    for choice in range(2):
        engine.add(sequence(choice, range(18), request_id="one"))
    engine.add(sequence(2, 4))
    step(engine)
    engine.cancel(engine.running[0])
    assert step(engine) == [(1, 8, 8, False)]


def test_choices_do_not_hold_up_those_behind():
    engine = scheduler(budget=16)
    for choice in range(2):
        engine.add(sequence(choice, range(8), request_id="one"))
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
    assert (second.cached_tokens, second.cache_miss_reason) == (20, None)


def test_pages_of_a_sequence_that_is_distrusted_are_not_found():
    engine = scheduler()
    engine.add(sequence(0, range(10)))
    step(engine)
    engine.distrust(engine.running[0])
    engine.add(sequence(1, range(11)))
    assert step(engine) == [(0, 10, 1, True), (1, 0, 11, True)]
    waiting = sequence(2, range(11))
    engine.add(waiting)
    engine.distrust(waiting)  # it has no pages yet
    step(engine)
    assert waiting.cached_tokens == 8  # those of the second, which were computed anew


def test_a_sequence_with_pages_of_others_is_computed_again_without_them():
    engine = scheduler()
    engine.add(sequence(0, range(10)))
    step(engine)
    engine.add(sequence(1, range(11)))
    step(engine)
    first, second = engine.running
    shared = second.pages[:2]
    assert not engine.restart(first)  # all pages are its own
    assert engine.restart(second) and engine.waiting == (second,) and not second.pages
    assert (1, 0, len(second.tokens), True) in step(engine)
    assert second.cached_tokens == 8 and not set(second.pages) & set(shared)  # as it was admitted first
    assert not engine.restart(second)  # again it would have none of others


def test_a_sequence_whose_own_page_was_there_already_is_computed_again():
    engine = scheduler()
    for id in range(3):
        engine.add(sequence(id, range(3), cache=id < 2))
    step(engine)
    first, second, third = engine.running
    step(engine)  # each fills a page with the same tokens
    assert first.pages[0] == second.pages[0] != third.pages[0]
    assert not engine.restart(first) and engine.restart(second) and not engine.restart(third)
