"""The folder of a journal: its lock, and the reserve for a disk that is full."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from headrace.errors import HeadraceError, UsageError
from headrace.journal.segment import PRIVATE_MODE

LOCK, RESERVE = "lock", "reserve"
MAX_RESERVE_BYTES, MIN_RESERVE_BYTES = 8 * 2**20, 2**16
"""Room on the disk that is given to requests that run when the rest is full."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class JournalInUse(HeadraceError):
    """Another process has the journal's folder."""

    remedy = "Stop that process, or name another folder."
    exit_code = 2


class Reserve:
    """A file that is given up when the disk is full."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._path, self._wanted_bytes, self._had_bytes = folder / RESERVE, size_bytes, 0
        self.is_there = False

    def take(self) -> bool:
        """Keep room on the disk for requests that run when it is full: as much as there is, and later as much
        as there was. False where there is none."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        size = self._had_bytes or self._wanted_bytes
        while size >= max(MIN_RESERVE_BYTES, self._had_bytes) and not self.is_there:
            try:
                file = os.open(self._path, flags, PRIVATE_MODE)
                try:
                    os.posix_fallocate(file, 0, size)
                finally:
                    os.close(file)
                self.is_there, self._had_bytes = True, size
            except OSError as error:
                with suppress(OSError):  # a folder of that name
                    self._path.unlink(missing_ok=True)
                self.is_there = error.errno not in FULL  # a file system that has no such thing
                size //= 2
        return self.is_there

    def give(self) -> bool:
        """Give the room back; whether there was some."""
        was_there, self.is_there = self.is_there, False
        if was_there:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        return was_there


def claimed(folder: Path) -> IO[str]:
    """The lock of a folder. JournalInUse names the process that has it; UsageError where others may change
    what is there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o002:
        raise UsageError(
            f"others may write in the journal's folder {folder}: name one of your own, or `chmod 700` it"
        )
    file = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = file.read().strip() or "unknown"
        file.close()
        raise JournalInUse(
            f"the journal {folder} is in use by process {owner}: stop that one, or name another folder"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
