"""How long a worker may make no step."""

from __future__ import annotations

from headrace.workers.step_watch import FORGET_S, LOOK_S, MIN_PATIENCE_S, PATIENCE_STEPS, StepWatch


def looks(watch: StepWatch, count: int, *, works: bool = True) -> None:
    for _ in range(count):
        watch.look((0, 5), works=works)


def test_only_a_worker_with_work_that_makes_no_step_is_stalled() -> None:
    watch = StepWatch()
    looks(watch, 100, works=False)
    assert watch.stalled_s == 0
    looks(watch, 4)
    assert watch.stalled_s == 4 * LOOK_S
    watch.look((0, 6), works=True)
    assert watch.stalled_s == 0
    looks(watch, 4)
    watch.look((0, 5), works=False)
    assert watch.stalled_s == 0


def test_patience_follows_the_longest_step_and_doubles() -> None:
    watch = StepWatch()
    looks(watch, int(MIN_PATIENCE_S / LOOK_S))
    assert not watch.overdue(0.0)
    looks(watch, 1)
    assert watch.overdue(0.0) and not watch.overdue(MIN_PATIENCE_S)
    assert watch.patience_s(MIN_PATIENCE_S) == PATIENCE_STEPS * MIN_PATIENCE_S
    watch.gave_up()
    assert watch.stalled_s == 0 and watch.patience_s(0.0) == 2 * MIN_PATIENCE_S


def test_what_hung_long_ago_makes_nobody_wait_longer() -> None:
    watch = StepWatch()
    watch.gave_up()
    watch.gave_up()
    looks(watch, int(FORGET_S / LOOK_S) - 1, works=False)
    assert watch.patience_s(0.0) == 4 * MIN_PATIENCE_S
    looks(watch, 1, works=False)
    assert watch.patience_s(0.0) == 2 * MIN_PATIENCE_S
    looks(watch, 2 * int(FORGET_S / LOOK_S), works=False)
    assert watch.patience_s(0.0) == MIN_PATIENCE_S


def test_patience_does_not_shrink_while_a_step_is_awaited() -> None:
    watch = StepWatch()
    watch.gave_up()
    looks(watch, 2 * int(FORGET_S / LOOK_S))
    assert watch.patience_s(0.0) == 2 * MIN_PATIENCE_S
