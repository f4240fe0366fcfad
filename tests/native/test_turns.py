"""Turns over the cores: order, shares, and processes that die."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from headrace import _native
from headrace.engine.turns import SharedTurns, TurnAsk, joined
from headrace.workers.spawn import TURNS_FILE_BYTES, turns_file
from stopped import stop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="turns between processes need Linux")

MEMBER = """
import os, sys, time
from headrace import _native
fd, tier, work_s, seconds, share = int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:6])
turns = _native.Turns(fd)
slot = turns.join(share)
whole = "part" not in sys.argv
print("joined", flush=True)
sys.stdin.readline()
while turns.cores * sum(used for _, used, _ in turns.members()) < seconds:
    turns.begin(slot, tier, float("inf"), work_s, whole)
    if "says" in sys.argv:
        print("has the turn", flush=True)
    until = time.process_time() + work_s
    while time.process_time() < until:
        pass
    turns.end(slot, True)
used = next(used for pid, used, _ in turns.members() if pid == os.getpid())
print(used * turns.cores, flush=True)
sys.stdin.readline()
turns.leave(slot)
"""


def member(
    fd: int, *more: str, tier: int = 1, work_s: float, seconds: float, share: float = 1.0
) -> subprocess.Popen[str]:
    """A process that has joined, with turns of `work_s` until all members together had `seconds`, both of
    processor time; `more`: "says" when it has its turn, wants a "part" of the cores."""
    values = [str(value) for value in (fd, tier, work_s, seconds, share, *more)]
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, *values],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[fd],
    )
    assert process.stdout is not None and process.stdout.readline() == "joined\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def used_s(processes: Sequence[subprocess.Popen[str]]) -> list[float]:
    """Let them begin; the seconds of a core that each had."""
    for process in processes:
        go(process)
    found = [float(process.stdout.readline()) for process in processes if process.stdout is not None]
    for process in processes:
        go(process)
        process.communicate(timeout=30)
    return found


@pytest.fixture
def fd() -> int:
    number = turns_file()
    assert number is not None
    _native.Turns(number, 2)  # on every machine
    return number


def test_the_file_has_room_for_the_arena() -> None:
    assert 0 < _native.TURNS_BYTES <= TURNS_FILE_BYTES


def test_a_file_that_is_too_small_is_refused() -> None:
    number = os.memfd_create("small")
    with pytest.raises(RuntimeError, match="too small"):
        _native.Turns(number)
    os.close(number)


def test_shares_must_be_positive() -> None:
    with pytest.raises(RuntimeError, match="positive"):
        _native.Turns().join(0.0)


def test_an_arena_has_slots_for_64_loops() -> None:
    turns = _native.Turns()
    slots = [turns.join() for _ in range(64)]
    assert sorted(slots) == list(range(64))
    with pytest.raises(RuntimeError, match="more loops"):
        turns.join()
    for slot in slots:
        turns.leave(slot)
    turns.leave(turns.join())


def test_alone_a_turn_is_granted_at_once() -> None:
    turns = _native.Turns()
    slot = turns.join()
    assert turns.begin(slot, 1, math.inf, 0.0) == 0.0
    assert not turns.contended()
    turns.end(slot, True)
    assert not turns.contended(1.0)
    turns.leave(slot)


def order_of(asks: Sequence[tuple[str, int, float]]) -> list[str]:
    """In which order loops get their turns that ask, in this order, while another has it."""
    turns, order, lock = _native.Turns(), list[str](), threading.Lock()
    own = turns.join()
    turns.begin(own, 1, math.inf, 0.0)

    def ask(name: str, tier: int, deadline_s: float, ready: threading.Event) -> None:
        slot = turns.join()
        ready.set()
        turns.begin(slot, tier, deadline_s, 0.0)
        with lock:
            order.append(name)
        turns.end(slot, False)
        turns.leave(slot)

    threads: list[threading.Thread] = []
    for name, tier, deadline_s in asks:
        ready = threading.Event()
        threads.append(threading.Thread(target=ask, args=(name, tier, deadline_s, ready)))
        threads[-1].start()
        ready.wait()
        time.sleep(0.02)
    assert turns.contended()
    turns.end(own, False)
    for thread in threads:
        thread.join()
    turns.leave(own)
    return order


def test_the_better_class_goes_first_and_in_it_the_earliest_deadline() -> None:
    soon, late = time.monotonic() + 0.5, time.monotonic() + 0.9
    asks = [("batch", 2, 0.0), ("late", 1, late), ("soon", 1, soon), ("interactive", 0, math.inf)]
    assert order_of(asks) == ["interactive", "soon", "late", "batch"]


def test_without_deadlines_the_first_that_asks_goes_first() -> None:
    assert order_of([("first", 1, math.inf), ("second", 1, math.inf)]) == ["first", "second"]


@pytest.mark.parametrize("more", [(), ("part",)])
@pytest.mark.parametrize("one_cpu", [False, True])
def test_models_have_equal_shares_however_long_their_steps(
    fd: int, one_cpu: bool, more: tuple[str, ...]
) -> None:
    before = os.sched_getaffinity(0)
    if one_cpu:
        os.sched_setaffinity(0, {min(before)})
    try:
        seconds = 1.5
        processes = [member(fd, *more, work_s=work_s, seconds=seconds) for work_s in (0.0005, 0.005, 0.02)]
        used = used_s(processes)
    finally:
        os.sched_setaffinity(0, before)
    # By turns the first would have 2 % and the last 78 %. Other work of the machine delays who asks again and
    # with it the shares.
    assert min(used) > sum(used) / 12, used


def test_shares_are_in_proportion(fd: int) -> None:
    processes = [
        member(fd, work_s=0.0005, seconds=1.5, share=2.0),
        member(fd, work_s=0.005, seconds=1.5),
    ]
    double, single = used_s(processes)
    assert 1.15 < double / single < 2.6, (double, single)  # 2 where no other work delays who asks again


def test_batch_makes_progress_beside_who_always_computes(fd: int) -> None:
    busy = member(fd, tier=0, work_s=0.001, seconds=2.6)
    batch = member(fd, tier=2, work_s=0.02, seconds=2.6)
    interactive, background = used_s([busy, batch])
    assert background > 0.01
    assert interactive > background


def test_who_has_slept_has_no_claim_to_what_it_missed(fd: int) -> None:
    turns = _native.Turns(fd)
    sleeper = turns.join()
    busy = member(fd, work_s=0.002, seconds=0.5)
    go(busy)
    assert busy.stdout is not None and float(busy.stdout.readline()) > 0.4
    begun = member(fd, work_s=0.002, seconds=1e9)
    go(begun)

    def had() -> float:
        return next(used for pid, used, _ in turns.members() if pid == begun.pid) * turns.cores

    while had() == 0.0:
        time.sleep(0.001)
    mine, before = 0.0, had()
    while mine + had() - before < 0.3:
        turns.begin(sleeper, 1, math.inf, 0.0)
        from_s = time.process_time()
        while time.process_time() < from_s + 0.002:
            pass
        mine += time.process_time() - from_s
        turns.end(sleeper, True)
    turns.leave(sleeper)
    assert mine < 0.22  # a half, not all
    begun.kill()
    begun.communicate()
    go(busy)
    busy.communicate(timeout=30)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_dies_in_its_turn_frees_it(fd: int, how: signal.Signals) -> None:
    turns = _native.Turns(fd)
    slot = turns.join()
    victim = member(fd, "says", work_s=60.0, seconds=60.0)
    go(victim)
    assert victim.stdout is not None and victim.stdout.readline() == "has the turn\n"
    killed_s: list[float] = []

    def kill() -> None:
        time.sleep(0.05)
        killed_s.append(time.monotonic())
        victim.send_signal(how)  # nobody waits for it: what is left is a zombie

    killer = threading.Thread(target=kill)
    killer.start()
    waited_s = turns.begin(slot, 1, math.inf, 0.0)
    stalled_s = time.monotonic() - killed_s[0]
    assert waited_s > 0.04
    assert stalled_s < 0.5  # some milliseconds on a machine that is not busy
    turns.end(slot, False)
    assert [pid for pid, _, _ in turns.members()] == [os.getpid()]
    turns.leave(slot)
    killer.join()
    victim.communicate()


def test_a_process_that_is_stopped_in_its_turn_holds_others_up_for_two_seconds_only(fd: int) -> None:
    turns = _native.Turns(fd)
    slot = turns.join()
    victim = member(fd, "says", work_s=0.2, seconds=0.2)
    go(victim)
    assert victim.stdout is not None and victim.stdout.readline() == "has the turn\n"
    stop(victim.pid)
    turns.begin(slot, 1, math.inf, 0.0)  # would wait for ever
    turns.end(slot, True)
    assert turns.begin(slot, 1, math.inf, 0.0) < 1.0  # later turns do not wait for it again
    turns.end(slot, False)
    turns.leave(slot)
    victim.send_signal(signal.SIGCONT)
    said = victim.communicate("\n", timeout=30)[0].splitlines()
    assert float(said[-1]) > 0.1  # it has ended its turns as if nothing had been


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_dies_frees_its_part(how: signal.Signals) -> None:
    fd = turns_file()
    assert fd is not None
    turns = _native.Turns(fd, 3)
    slot = turns.join()
    turns.begin(slot, 1, math.inf, 0.0, False)
    assert turns.held(slot) == 3
    victim = member(fd, "says", "part", work_s=60.0, seconds=60.0)
    go(victim)
    while not turns.contended():
        time.sleep(0.001)
    turns.end(slot, True)
    assert victim.stdout is not None and victim.stdout.readline() == "has the turn\n"
    turns.begin(slot, 1, math.inf, 0.0, False)
    assert turns.held(slot) == 1  # the other has 2
    turns.end(slot, True)
    victim.send_signal(how)
    waited_s = turns.begin(slot, 1, math.inf, 0.0, True)  # nobody has waited for it yet: it is a zombie
    assert waited_s < 0.5
    assert turns.held(slot) == 3
    turns.end(slot, False)
    turns.leave(slot)
    victim.communicate()


def test_alone_all_cores_and_beside_another_a_part() -> None:
    turns = _native.Turns(-1, 8)
    assert turns.cores == 8
    small, large = turns.join(1.0, 2), turns.join(3.0)
    turns.begin(large, 1, math.inf, 0.0, False)
    assert turns.held(large) == 8
    turns.end(large, False)
    turns.begin(small, 1, math.inf, 0.0, False)
    turns.begin(large, 1, math.inf, 0.0, False)
    assert (turns.held(small), turns.held(large)) == (2, 6)
    for slot in (small, large):
        turns.leave(slot)


def test_the_pool_has_as_many_threads_as_the_turn_has_cores() -> None:
    arena = _native.Turns(-1, 4)
    pool, other = _native.Pool(3), arena.join()
    turns = SharedTurns(arena)
    turns.attach(pool)
    with joined(turns):
        turns.begin(TurnAsk())
        assert (turns.width, pool.width) == (0, 3)
        assert not turns.contended
        turns.end(again=False)
        arena.begin(other, 1, math.inf, 0.0, False)
        arena.end(other, True)  # it will be back in a moment
        turns.begin(TurnAsk())
        assert (turns.width, pool.width) == (2, 2)
        assert turns.contended
        turns.end(again=False)
        time.sleep(0.02)
        turns.begin(TurnAsk())
        assert (turns.width, pool.width) == (0, 3)
        turns.end(again=False)
    arena.leave(other)


def test_a_process_that_dies_while_it_waits_gets_no_turn(fd: int) -> None:
    turns = _native.Turns(fd)
    slot = turns.join()
    turns.begin(slot, 1, math.inf, 0.0)
    waiting = member(fd, work_s=60.0, seconds=60.0)
    go(waiting)
    while not turns.contended():
        time.sleep(0.001)
    waiting.kill()
    waiting.communicate()
    turns.end(slot, True)
    assert turns.begin(slot, 1, math.inf, 0.0) < 0.5
    turns.end(slot, False)
    turns.leave(slot)


def test_a_loop_that_leaves_in_its_turn_frees_it() -> None:
    turns = _native.Turns()
    first, second = turns.join(), turns.join()
    turns.begin(first, 1, math.inf, 0.0)
    turns.leave(first)
    assert turns.begin(second, 1, math.inf, 0.0) < 0.5
    turns.leave(second)
