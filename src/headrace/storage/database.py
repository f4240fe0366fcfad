"""The SQLite file: opened on first use, migrated to the current schema, shared by threads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StoreError
from headrace.storage.schema import MIGRATIONS

BUSY_TIMEOUT_S = 5.0

Row = tuple[int | float | str | bytes | None, ...]
Value = int | float | str | bytes | None


class Database:
    """A SQLite file, or an in-memory database if `path` is None. Thread-safe: calls run one at a time.

    Every failure of SQLite (disk full, file damaged) raises StoreError.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @property
    def exists(self) -> bool:
        """True if there is something to read; this does not create the file."""
        return self._connection is not None or (self.path is not None and self.path.is_file())

    def query(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows of a SELECT."""
        with self._opened() as connection:
            return connection.execute(sql, values).fetchall()

    def execute(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Run one statement in its own transaction (or the enclosing one); returns how many rows changed."""
        with self.transaction() as connection:
            return connection.execute(sql, values).rowcount

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run one statement for each of `rows`, in one transaction."""
        with self.transaction() as connection:
            connection.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run a block in a transaction, atomically. Blocks may nest; the outermost commits."""
        with self._opened() as connection:
            if connection.in_transaction:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file; a later call reopens it."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(f"the store {self._name} failed: {error}") from error

    @property
    def _name(self) -> str:
        return self.path.name if self.path else "in memory"

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.path.touch(mode=0o600)  # owner-only access: it may contain users' texts
            except OSError as error:
                raise StoreError(f"the store {self.path} cannot be made: {error.strerror}") from error
        connection = sqlite3.connect(
            self.path or ":memory:",
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted data with zeros
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Run the migrations that this file has not seen. Raises StoreError if a newer version wrote it."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
    seen = {name for (name,) in connection.execute("SELECT name FROM migrations")}
    unknown = seen - set(MIGRATIONS)
    if unknown:
        raise StoreError(
            f"the store was written by a newer version ({', '.join(sorted(unknown))} is not known here): "
            "update Headrace or name another --store"
        )
    for name, statements in MIGRATIONS.items():
        if name not in seen:
            for statement in statements:
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?)", (name,))
    connection.execute("COMMIT")
