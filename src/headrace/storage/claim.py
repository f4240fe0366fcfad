"""Which of several servers with one store does its background work."""

from __future__ import annotations

import fcntl
import logging
import math
import time
import uuid
from pathlib import Path
from typing import IO, Protocol

from headrace.errors import StoreError
from headrace.storage.database import Database, open_private
from headrace.storage.sql_store import SqlStore

LOG = logging.getLogger("headrace.storage")
LEASE_S = 15.0
"""How long the work of a server that shares its store waits after the server was heard of last."""


class Claim(Protocol):
    """A kind of work of a store, which one process does at a time. It looks into the store: not for the event
    loop."""

    def held(self) -> bool:
        """Take it if nobody has it; whether the work is this process's."""
        ...

    def close(self) -> None:
        """Leave the work to others."""
        ...


class StoreClaim:
    """See `Claim`: a lock on a file beside the store, which the kernel frees however the process ends. What
    is only in memory is its process's own."""

    def __init__(self, store: Path | None, work: str) -> None:
        self._lock = None if store is None else store.with_name(f"{store.name}.{work}")
        self._work = work
        self._file: IO[str] | None = None

    def held(self) -> bool:
        """See `Claim.held`."""
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
        """See `Claim.close`."""
        if self._file is not None:
            self._file.close()


class StoreLease:
    """See `Claim`: a row of a store that servers of several machines share, until a time on its clock. The
    holder calls `held` more often than every LEASE_S."""

    def __init__(self, database: SqlStore, work: str) -> None:
        self._database, self._work = database, work
        self._holder = uuid.uuid4().hex
        self._asked_s = -math.inf

    def held(self) -> bool:
        """See `Claim.held`. Raises StoreError."""
        asked_s = time.monotonic()
        if asked_s - self._asked_s < LEASE_S / 5:
            return True
        now_s = (self._database.shared_clock or time.time)()
        others = self._database.query(
            "SELECT 1 FROM claims WHERE work = ? AND holder != ? AND until_s > ?",
            (self._work, self._holder, now_s),
        )
        taken = not others and self._database.execute(
            "INSERT INTO claims VALUES (?, ?, ?) ON CONFLICT (work) DO UPDATE SET holder = excluded.holder, "
            "until_s = excluded.until_s WHERE claims.holder = excluded.holder OR claims.until_s <= ?",
            (self._work, self._holder, now_s + LEASE_S, now_s),
        )
        self._asked_s = asked_s if taken else -math.inf
        return bool(taken)

    def close(self) -> None:
        """See `Claim.close`. Where the store fails the time ends it."""
        if self._asked_s > -math.inf:
            self._asked_s = -math.inf
            try:
                self._database.execute(
                    "DELETE FROM claims WHERE work = ? AND holder = ?", (self._work, self._holder)
                )
            except StoreError as error:
                LOG.warning("%s: others go on in %.0f s: %s", self._work, LEASE_S, error.message)


def claim_of(database: SqlStore, work: str) -> Claim:
    """The claim of a kind of work of a store."""
    return StoreClaim(database.path, work) if isinstance(database, Database) else StoreLease(database, work)
