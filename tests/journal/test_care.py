"""A process that is killed at any step of looking after its files loses nothing and keeps nothing deleted."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.journal.frames import tag_of
from headrace.journal.known_requests import in_order
from headrace.journal.log import MANY, Log
from headrace.journal.reader import RecordKind

ALL = ("compact", "drop", "join")
STEPS = ("open", "write", "fsync", "replace", "rename", "unlink", "utime", "truncate", "ftruncate")
RUNNING, KEPT, DELETED = (1, 2), (30, 31, 32), (20, 21, 22)
BUDGET = 2**20
SECRET = b"WORDS OF A DELETED REQUEST"


def written(log: Log, number: int, body: bytes, events: int, *, ends: bool) -> None:
    log.append(RecordKind.OPENED, number, tag_of(f"req_{number}"), body)
    for place in range(events):
        log.append(RecordKind.EVENTS, number, place, bytes([number, place]) * 600)
    if ends:
        log.append(RecordKind.ENDED, number, tag_of(f"reply_{number}"), b"reply to " + body)
    log.write()


def prepare(folder: Path, what: str) -> None:
    """A folder in which there is that to do."""
    log = Log(folder, budget_bytes=BUDGET)
    for number in RUNNING:
        written(log, number, b"runs", 4, ends=False)
    for number in range(3, 12):
        written(log, number, b"old" * 4000, 4, ends=True)
    for number in DELETED:
        written(log, number, SECRET, 4, ends=True)
    for number in RUNNING:
        for place in range(4, 8):
            log.append(RecordKind.EVENTS, number, place, bytes([number, place]) * 600)
    for number in KEPT:
        written(log, number, b"kept", 4, ends=True)
    log.close()
    if what == "join":
        log = Log(folder, budget_bytes=BUDGET)
        for number in range(40, 41 + MANY):
            written(log, number, b"short", 1, ends=True)
            log._rotate()  # pyright: ignore[reportPrivateUsage]
        log.close()


def work(folder: Path, what: str) -> None:
    log = Log(folder, budget_bytes=2**15 if what == "drop" else BUDGET, segment_bytes=2**16)
    log.forget(DELETED)
    log.care()
    written(log, 99, b"after", 1, ends=True)
    log.close()


def killed_at(step: int, do: Callable[[], None]) -> bool:
    """Whether a process that does it is killed before its `step`-th call of the operating system."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counts(*args: Any, **named: Any) -> Any:
                nonlocal count
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return call(*args, **named)

            return counts

        code = 1
        try:
            for name in STEPS:
                setattr(os, name, counted(getattr(os, name)))
            do()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, step
    return False


@pytest.mark.parametrize(
    ("what", "stride"),
    [
        ("compact", 2),
        ("drop", 3),
        ("join", 37),
        *(pytest.param(one, 1, marks=pytest.mark.soak) for one in ALL),
    ],
)
def test_a_kill_at_every_step(tmp_path: Path, what: str, stride: int) -> None:
    whole = tmp_path / "whole"
    prepare(whole, what)
    step = 0
    while True:
        folder = tmp_path / str(step)
        shutil.copytree(whole, folder)
        was_killed = killed_at(step, lambda folder=folder: work(folder, what))
        check(folder, what, step)
        shutil.rmtree(folder)
        if not was_killed:
            break
        step += stride
    assert step > 20


def check(folder: Path, what: str, step: int) -> None:
    for turn in range(2):
        log = Log(folder, budget_bytes=2**15 if what == "drop" else BUDGET, segment_bytes=2**16)
        assert not log.damages, (step, log.damages)
        assert log.unfinished() == list(RUNNING), step
        for number, records in log.read(RUNNING).items():
            found, has_gap = in_order(records)
            assert [one.payload for one in found] == [bytes([number, n]) * 600 for n in range(8)], step
            assert not has_gap
        ended = log.ended()
        if what != "drop":
            assert {*ended} >= {*KEPT, *range(3, 12)}, step
        for number, records in log.read(ended, RecordKind.ENDED).items():
            assert len({one.payload for one in records}) == 1, (step, number)
        gone = not {*DELETED} & {*ended}
        log.begin_new_file_if_old()  # as a server does when it starts
        log.care()
        log.close()
        if turn == 1 and gone:
            for path in folder.iterdir():
                assert SECRET not in path.read_bytes(), (step, path)
