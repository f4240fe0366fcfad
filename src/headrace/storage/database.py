"""The SQLite file: opened on first use, migrated to the current schema, shared by threads."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.errors import StoreBusy, StoreError
from headrace.storage.schema import MIGRATIONS
from headrace.storage.sql_store import Row, Value

BUSY_TIMEOUT_S = 1.0
"""How long a call waits for a lock of another process."""
STILL_BUSY_TIMEOUT_S = 0.05
"""How long it waits after a call that timed out, until one has succeeded: calls that queue up behind a lock
must not wait for it one after the other."""
TURN_TIMEOUT_S = 10.0
"""How long it waits for transactions of this process, of which each makes progress."""
PRIVATE_MODE = 0o600
REWRITTEN_AT_ONCE = 64 << 20
REWRITE_EVERY_S = 6 * 3600.0

LOG = logging.getLogger("headrace.storage")


class Database:
    """A SQLite file, or an in-memory database if `path` is None. Thread-safe.

    Transactions run one at a time. Queries outside of one have a connection of their own, so they do not wait
    for a transaction of this process or another (write-ahead log). No call waits long for another process:
    it raises StoreBusy. Every other failure of SQLite (disk full, file damaged) raises StoreError.
    """

    def __init__(
        self,
        path: Path | None,
        migrations: Mapping[str, Sequence[str]] = MIGRATIONS,
        *,
        survives_power_cuts: bool = False,
    ) -> None:
        """A power cut never damages it. What was written last survives one only where each transaction waits
        for the disk (`survives_power_cuts`)."""
        self.path = path
        self._migrations = migrations
        self._synchronous = "FULL" if survives_power_cuts else "NORMAL"
        self._writing = threading.RLock()
        self._reading = threading.RLock() if path else self._writing
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._owner: int | None = None  # the thread whose transaction is open
        self._busy = False  # the last call timed out
        self._timeouts: dict[int, float] = {}  # of connections, as they were last set
        self._has_copies = False  # of deleted rows
        self._rewritten_s = -math.inf

    @property
    def shared_clock(self) -> None:
        """See `SqlStore.shared_clock`: all that have the file are on this machine."""
        return None

    @property
    def exists(self) -> bool:
        """True if there is something to read; this does not create the file."""
        return self._writer is not None or (self.path is not None and self.path.is_file())

    def query(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows of a SELECT."""
        if (own := self._own) is not None:
            return own.execute(sql, values).fetchall()
        if self.path is None:
            with self._locked(self._writing):
                return self._open_writer().execute(sql, values).fetchall()
        with self._locked(self._reading):
            return self._open_reader().execute(sql, values).fetchall()

    def execute(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Run one statement in its own transaction (or the enclosing one); returns how many rows changed."""
        if (own := self._own) is not None:
            return own.execute(sql, values).rowcount
        with self.transaction() as connection:
            return connection.execute(sql, values).rowcount

    def insert(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Run an INSERT … RETURNING of one row's number in its own transaction (or the enclosing one)."""
        if (own := self._own) is not None:
            [(number,)] = own.execute(sql, values).fetchall()
            return number
        with self.transaction() as connection:
            [(number,)] = connection.execute(sql, values).fetchall()
        return number

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run one statement for each of `rows`, in one transaction."""
        if not rows:
            return
        if (own := self._own) is not None:
            own.executemany(sql, rows)
            return
        with self.transaction() as connection:
            connection.executemany(sql, rows)

    @property
    def _own(self) -> sqlite3.Connection | None:
        """The connection of the transaction that this thread has opened. What SQLite raises in it becomes a
        typed error where the transaction ends."""
        return self._writer if self._owner == threading.get_ident() else None

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run a block in a transaction, atomically. Blocks may nest; the outermost commits."""
        if (own := self._own) is not None:
            yield own
            return
        with self._locked(self._writing):
            connection = self._open_writer()
            self._set_timeout(connection)
            connection.execute("BEGIN IMMEDIATE")
            self._busy, self._owner = False, threading.get_ident()
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite itself ends it after some errors
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._owner = None

    def erase_deleted(self) -> None:
        """Remove deleted data also from the write-ahead log, unless another process reads just now. Copies of
        rows that SQLite had moved stay until `erase_copies`."""
        with self._locked(self._writing):
            self._has_copies = True
            self._open_writer().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def erase_copies(self) -> None:
        """Remove what `erase_deleted` leaves, by `rewrite`: of a file above REWRITTEN_AT_ONCE at most every
        REWRITE_EVERY_S, and where another program has locked it by a later call."""
        if not self._has_copies or self.path is None:
            return
        is_small = self.path.stat().st_size <= REWRITTEN_AT_ONCE
        if not is_small and time.monotonic() - self._rewritten_s < REWRITE_EVERY_S:
            return
        try:
            self.rewrite()
        except StoreError as error:  # the rows themselves are deleted
            LOG.warning("copies of deleted rows may be left in the store until the next deletion: %s", error)

    def rewrite(self) -> None:
        """Write the file anew: rows that were moved within it have left copies in its pages, which deleting
        them does not overwrite. Takes time in the file's size. StoreBusy while another process reads."""
        with self._locked(self._writing):
            writer = self._open_writer()
            self._set_timeout(writer)
            writer.execute("VACUUM")
            [(is_busy, *_)] = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if is_busy:
                raise self._busy_error("another program reads it")
            self._has_copies, self._rewritten_s = False, time.monotonic()

    def damage(self) -> list[str]:
        """What is wrong with the file."""
        return [str(text) for (text,) in self.query("PRAGMA quick_check(5)") if text != "ok"]

    def triggers(self) -> set[str]:
        """The names of the triggers that are there."""
        return {str(name) for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'trigger'")}

    def close(self) -> None:
        """Close the file; a later call reopens it."""
        with self._reading, self._writing:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None
            self._timeouts.clear()

    @contextmanager
    def _locked(self, lock: threading.RLock) -> Generator[None]:
        """With the lock held; errors of SQLite become typed ones."""
        if not lock.acquire(timeout=TURN_TIMEOUT_S):
            raise self._busy_error("another request writes")
        try:
            yield
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreError(f"the store {self._name} failed: {error}") from error
            self._busy = True
            raise self._busy_error("another program has locked it") from error
        except sqlite3.Error as error:
            raise StoreError(f"the store {self._name} failed: {error}") from error
        finally:
            lock.release()

    @property
    def _timeout_s(self) -> float:
        return STILL_BUSY_TIMEOUT_S if self._busy else BUSY_TIMEOUT_S

    def _set_timeout(self, connection: sqlite3.Connection) -> None:
        if self._timeouts.get(id(connection)) != self._timeout_s:
            connection.execute(f"PRAGMA busy_timeout = {round(self._timeout_s * 1000)}")
            self._timeouts[id(connection)] = self._timeout_s

    def _busy_error(self, cause: str) -> StoreBusy:
        return StoreBusy(f"the store {self._name} is busy ({cause}): try again in a moment", reason="store")

    @property
    def _name(self) -> str:
        return self.path.name if self.path else "in memory"

    def _open_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            self._make_file()
            self._writer = self._connect(writes=True)
        return self._writer

    def _open_reader(self) -> sqlite3.Connection:
        if self._reader is None:
            if self._writer is None:  # it makes and migrates the file
                with self._locked(self._writing):
                    self._open_writer()
            self._reader = self._connect(writes=False)
        self._set_timeout(self._reader)
        return self._reader

    def _connect(self, *, writes: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path or ":memory:", timeout=self._timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            if writes:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted data with zeros
                _migrate(connection, self._migrations)
            else:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_file(self) -> None:
        """Make the file if there is none. Its owner alone may read it: it may contain users' texts."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            open_private(self.path)
        except OSError as error:
            raise StoreError(f"the store {self.path} cannot be made: {error.strerror}") from error


def open_private(path: Path) -> None:
    """Make a file that its owner alone may read and write, or make the existing one so.

    One that exists is not opened: to close it would drop all locks that this process has on it, those of
    SQLite's connections among them, and another process that ends would delete the log under them.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE))
    status = path.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        LOG.warning("%s was readable by others: now its owner alone may read it", path.name)
        path.chmod(PRIVATE_MODE)


def _migrate(connection: sqlite3.Connection, migrations: Mapping[str, Sequence[str]]) -> None:
    """Run the migrations that this file has not seen. Raises StoreError if a newer version wrote it.

    A file that has seen all is only read: another process may be writing.
    """
    if _missing(connection, migrations):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
        for name in _missing(connection, migrations):  # again: another process may have been faster
            for statement in migrations[name]:
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?)", (name,))
        connection.execute("COMMIT")


def _missing(connection: sqlite3.Connection, migrations: Mapping[str, Sequence[str]]) -> list[str]:
    """The migrations that the file has not seen, in order."""
    seen: set[str] = set()
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchall():
        seen = {name for (name,) in connection.execute("SELECT name FROM migrations")}
    unknown = seen - set(migrations)
    if unknown:
        raise StoreError(
            f"the store was written by a newer version ({', '.join(sorted(unknown))} is not known here): "
            "update Headrace or name another --store"
        )
    return [name for name in migrations if name not in seen]
