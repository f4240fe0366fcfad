"""Stops a process, and waits until it has stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def stop(pid: int) -> None:
    """SIGSTOP: what is sent to the process from now on waits, also where it came at once."""
    os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + 60
    while not _is_stopped(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def _is_stopped(pid: int) -> bool:
    """Whether all threads are (the state follows the name, which may hold brackets)."""
    files = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(file.read_text().rpartition(")")[2].split()[0] in "TZ" for file in files)
