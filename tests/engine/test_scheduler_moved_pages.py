"""Pages that come from elsewhere or go there, and the sequences that want them."""

from __future__ import annotations

from scheduling import scheduler, sequence, step

ROOT = (True, "", "")


def test_what_waits_for_pages_goes_on_when_they_do_not_come() -> None:
    engine = scheduler(pages=8)
    reserved = engine.moved.reserve(ROOT, tuple(range(17)))
    assert len(reserved.pages) == 4 and engine.available_pages == 4
    engine.add(sequence(0, 20))
    assert step(engine) == [] == step(engine)
    assert engine.moved.commit(reserved, 0) == 0
    assert step(engine) == [(0, 0, 20, True)]


def test_what_waits_for_pages_goes_on_when_they_were_read() -> None:
    engine = scheduler(pages=8)
    held = engine.moved.reserve(ROOT, tuple(range(17)))
    assert engine.moved.commit(held, 4) == 16
    pinned = engine.moved.pin(ROOT, range(17), 0, None)
    assert pinned == held.pages
    engine.add(sequence(0, 20))
    assert step(engine) == []
    engine.moved.unpin(pinned)
    assert step(engine) == [(0, 0, 20, True)]
