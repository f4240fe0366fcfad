"""The scheduler: steps that are repeated at once, and what they may take."""

from __future__ import annotations

from scheduling import P, crowd, nearly_full, scheduler, sequence, step

from headrace.engine.scheduler.scheduler import Scheduler


def repeat(engine: Scheduler, times: int, drawn: int | None = None) -> int:
    """One step repeated as often as that may be, which is returned; each sequence gets its tokens, or only
    `drawn` of them."""
    chunks = engine.schedule()
    possible = engine.repeatable(chunks, times)
    repeats = max(possible, 0)
    for chunk in chunks:
        chunk.sequence.tokens += [7] * (1 + repeats if drawn is None else drawn)
    engine.advance(chunks, repeats)
    return possible


def test_all_tokens_but_the_last_are_computed():
    engine = scheduler()
    first, second = crowd(engine, [6, 3], room=30)
    step(engine)
    assert repeat(engine, 5) == 5
    assert [len(one.tokens) - one.computed for one in (first, second)] == [1, 1]
    assert first.computed == 12 and len(first.pages) == 3
    assert step(engine) == [(0, 12, 1, True), (1, 9, 1, True)]


def test_repeats_end_with_the_first_that_ends():
    engine = scheduler()
    crowd(engine, [6], room=30)
    engine.add(sequence(1, 3, room=4))
    step(engine)
    assert repeat(engine, 9) == 2  # two more tokens, after which the second has its four
    engine = scheduler()
    crowd(engine, [6], room=2)
    step(engine)
    assert repeat(engine, 9) == 0


def test_only_single_tokens_are_repeated():
    engine = scheduler(budget=8)
    crowd(engine, [6, 20], room=30)
    assert repeat(engine, 4) == -1  # prompts
    one = sequence(5, 1, room=30)
    engine = scheduler()
    engine.add(one)
    step(engine)
    one.draft = [8]
    assert repeat(engine, 4) == -1  # a draft
    one.draft = []
    assert repeat(engine, 4) == 4


def test_repeats_take_no_page_that_others_may_need():
    engine, first, second = nearly_full()
    room = len(first.pages) * P - first.computed - 1
    assert repeat(engine, 30) == room < 30
    assert engine.available_pages >= 2 and not second.preemptions  # one left for each


def test_what_was_not_drawn_is_not_counted():
    """A call that was interrupted, or a sequence that has ended within it."""
    engine = scheduler()
    crowd(engine, [6], room=30)
    step(engine)
    assert repeat(engine, 5, drawn=3) == 5
    assert step(engine) == [(0, 9, 1, True)]
