"""Work that stands back for what other processes compute. Imports very little: it runs before the imports."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

NICE = 5
"""Added to the priority of the process: a third of the processor time of a thread of normal priority beside
it (Linux): streams of other models hardly notice, and a worker starts within seconds on a full machine."""


def in_low_priority(work: Callable[[], T]) -> T:
    """What `work` returns or raises, run on a thread of lower priority while this one waits.

    A thread of its own, because only a privileged process may raise a priority again. Where priorities are
    those of processes (outside Linux) it runs at the priority of all.
    """
    found: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                thread = threading.get_native_id()
                own = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, min(own + NICE, 19))
        try:
            found.append(work())
        except BaseException as error:  # of the caller
            failures.append(error)

    runner = threading.Thread(target=run, name="headrace-loading", daemon=True)
    runner.start()
    runner.join()
    if failures:
        raise failures[0]
    return found[0]
