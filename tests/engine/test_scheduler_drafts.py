"""The scheduler: drafts of sequences, and what they may take."""

from __future__ import annotations

from scheduling import P, nearly_full, scheduler, sequence, step, verify

from headrace.engine.scheduler.scheduler import Scheduler


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
        page_count=64, max_batch_tokens=12, max_num_seqs=3, ageing_s=10, page_tokens=P, max_rows=8
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
    engine, first, second = nearly_full()
    first.draft = [8] * 12
    slots = len(first.pages) * P - first.computed - 1
    assert verify(engine, 0)[0] == (0, 1, slots + P)  # one page, so that each has one left
    assert engine.available_pages >= 2 and not second.preemptions


def test_a_draft_that_gets_nothing_waits():
    engine = Scheduler(
        page_count=64, max_batch_tokens=8, max_num_seqs=2, ageing_s=10, page_tokens=P, max_rows=4
    )
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
