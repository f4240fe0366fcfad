"""Which of several servers with one store does its background work."""

from __future__ import annotations

import fcntl
import logging
from pathlib import Path
from typing import IO

from headrace.storage.database import open_private

LOG = logging.getLogger("headrace.storage")


class StoreClaim:
    """A kind of work of a store, which one process does at a time: a lock on a file beside the store, which
    the kernel frees however the process ends. What is only in memory is its process's own."""

    def __init__(self, store: Path | None, work: str) -> None:
        self._lock = None if store is None else store.with_name(f"{store.name}.{work}")
        self._work = work
        self._file: IO[str] | None = None

    def held(self) -> bool:
        """Take it if nobody has it; whether the work is this process's."""
        if self._file is not None or self._lock is None:
            return True
        try:
            open_private(self._lock)
            file = self._lock.open("w")
        except OSError as error:
            LOG.error("%s: what waits is not done: the lock cannot be made: %s", self._work, error.strerror)
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._file = file
        return True

    def close(self) -> None:
        """Leave the work to others."""
        if self._file is not None:
            self._file.close()
