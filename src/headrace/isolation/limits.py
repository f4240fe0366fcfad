"""How much time and memory a process may take from now on."""

from __future__ import annotations

import math
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_BACKSTOP_S = 2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class ProcessLimits(Struct, frozen=True):
    """CPU seconds of all threads together, and bytes in addition to what the process has when it begins."""

    cpu_s: float
    memory_bytes: int


def apply(limits: ProcessLimits) -> None:
    """Limit this process. Where it takes more time a signal ends it; more memory it does not get.

    Memory is limited on Linux alone: elsewhere the time bounds it.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    with suppress(OSError, ValueError):
        seconds = math.ceil(limits.cpu_s) + _BACKSTOP_S  # should something block the signal
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # the second one is SIGKILL
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if _STATM.exists():
            most = _statm(5) + limits.memory_bytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def resident_bytes() -> int:
    """Memory that this process holds; 0 where it is not known."""
    return _statm(1) if _STATM.exists() else 0


def _statm(field: int) -> int:
    return int(_STATM.read_text().split()[field]) * _PAGE_BYTES
