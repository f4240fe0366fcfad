"""The times of a step, with a clock that is set by hand."""

from __future__ import annotations

from headrace.engine.step_clock import StepClock


def test_stalled_since_the_step_began_or_the_last_one_ended() -> None:
    now = [100.0]
    clock = StepClock(lambda: now[0])
    now[0] += 3600  # an idle loop may wait for hours
    assert clock.stalled_s == 0
    clock.wait(idle=True)
    now[0] += 3600
    clock.begin()
    now[0] += 2
    assert clock.stalled_s == 2
    clock.end()
    assert (clock.stalled_s, clock.longest_s) == (0, 2)
    clock.wait(idle=False)
    now[0] += 5
    assert clock.stalled_s == 5
    clock.begin()
    now[0] += 1
    clock.end()
    clock.wait(idle=True)
    now[0] += 50
    assert (clock.stalled_s, clock.longest_s) == (0, 2)
