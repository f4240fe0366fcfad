"""A process that ends with the one that reads what it writes, also where that is killed."""

from __future__ import annotations

import os
import select
import sys
import threading


def end_with_reader() -> None:
    """From now on this process ends as soon as nobody reads its standard output, if that is a pipe: at once,
    as SIGKILL ends it."""
    threading.Thread(target=_watch, args=(sys.stdout.fileno(),), name="headrace-reader", daemon=True).start()


def _watch(file: int) -> None:
    watched = select.poll()
    watched.register(file, 0)  # what is told anyway: that the other end is closed
    watched.poll()
    os._exit(1)
