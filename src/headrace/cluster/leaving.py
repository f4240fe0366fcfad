"""Asks the replicas of this machine to leave their fronts. Linux alone: it reads /proc."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from headrace.cluster import join

LOOK_S = 0.2


def leave(timeout_s: float) -> tuple[list[int], list[int]]:
    """The process ids of this user's replicas that were asked, and of those that still run after so long."""
    asked = [number for path in Path("/proc").glob("[0-9]*") if _is_replica(number := int(path.name))]
    for number in asked:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)
    until_s, left = time.monotonic() + timeout_s, asked
    while (left := list(filter(_is_replica, left))) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    return asked, left


def _is_replica(number: int) -> bool:
    """Whether a process of this user is a replica of a front."""
    with suppress(OSError):
        folder = Path(f"/proc/{number}")
        words = (folder / "cmdline").read_bytes().split(b"\0")
        wanted = join.__name__.encode()
        return folder.stat().st_uid == os.getuid() and words[2:4] == [b"-m", wanted]
    return False
