"""A PostgreSQL database that several servers share: the ledger and its budgets. Needs the extra postgres."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.adapt import Loader

from headrace.errors import StoreBusy, StoreError
from headrace.storage.postgres_schema import LEDGER, TRIGGERS, statements
from headrace.storage.sql_store import Row, Value

CONNECT_TIMEOUT_S = 5
LOCK_TIMEOUT_S = 10
TURN_TIMEOUT_S = 20.0
_WRITERS = 0x48656164726163
"""The number of the lock that a transaction takes, so that there is one at a time over all servers."""
_MIGRATING = _WRITERS + 1
_BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({_WRITERS})".encode()


class _Whole(Loader):
    """Sums of whole numbers, which PostgreSQL calls numeric."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


class PostgresDatabase:
    """See `SqlStore`. `url` as libpq takes it; a password in it is in no message."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._writing, self._reading = threading.RLock(), threading.RLock()
        self._writer: psycopg.Connection[Row] | None = None
        self._reader: psycopg.Connection[Row] | None = None
        self._owner: int | None = None  # the thread whose transaction is open
        self._clock_offset_s: float | None = None

    exists = True

    @property
    def shared_clock(self) -> Callable[[], float]:
        """See `SqlStore.shared_clock`: the server's clock as it was at the start."""
        return self._now_s

    def _now_s(self) -> float:
        if self._clock_offset_s is None:
            [(now_s,)] = self.query("SELECT extract(epoch FROM clock_timestamp())::double precision")
            assert isinstance(now_s, float)
            self._clock_offset_s = now_s - time.monotonic()
        return time.monotonic() + self._clock_offset_s

    def query(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """See `SqlStore.query`."""
        if self._owner == threading.get_ident():
            with self._locked(self._writing):
                return self._open_writer().execute(_placed(sql), values).fetchall()
        with self._locked(self._reading):
            return self._open_reader().execute(_placed(sql), values).fetchall()

    def execute(self, sql: str, values: Sequence[Value] = ()) -> int:
        """See `SqlStore.execute`."""
        with self.transaction() as connection:
            return connection.execute(_placed(sql), values).rowcount

    def insert(self, sql: str, values: Sequence[Value] = ()) -> int:
        """See `SqlStore.insert`."""
        with self.transaction() as connection:
            [(number,)] = connection.execute(_placed(sql), values).fetchall()
        assert isinstance(number, int)
        return number

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """See `SqlStore.execute_many`."""
        if not rows:
            return
        with self.transaction() as connection, connection.cursor() as cursor:
            cursor.executemany(_placed(sql), rows)

    @contextmanager
    def transaction(self) -> Generator[psycopg.Connection[Row]]:
        """See `SqlStore.transaction`. It waits for its turn among all servers."""
        with self._locked(self._writing):
            connection = self._open_writer()
            if self._owner == threading.get_ident():
                yield connection
                return
            try:
                connection.execute(_BEGIN)  # where the turn does not come, a failed transaction is open
                self._owner = threading.get_ident()
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if not connection.closed:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._owner = None

    def damage(self) -> list[str]:
        """See `SqlStore.damage`: PostgreSQL looks after its own files."""
        return []

    def triggers(self) -> set[str]:
        """See `SqlStore.triggers`; those that are switched off are not there."""
        rows = self.query(
            "SELECT tgname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
            "WHERE tgenabled != 'D' AND pg_table_is_visible(pg_class.oid)"
        )
        return {str(name) for (name,) in rows} & set(TRIGGERS)

    def close(self) -> None:
        """See `SqlStore.close`."""
        with self._reading, self._writing:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    @contextmanager
    def _locked(self, lock: threading.RLock) -> Generator[None]:
        """With the lock held; errors of PostgreSQL become typed ones."""
        if not lock.acquire(timeout=TURN_TIMEOUT_S):
            raise _busy("another request writes")
        try:
            yield
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as error:
            raise _busy("other servers write") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self._drop()
            raise _busy("it does not answer") from error
        except psycopg.Error as error:
            said = error.diag.message_primary or type(error).__name__
            raise StoreError(f"the ledger's PostgreSQL failed: {said}") from error
        finally:
            lock.release()

    def _drop(self) -> None:
        """Leave connections that are broken: the next call makes new ones."""
        for name in ("_reader", "_writer"):
            connection = getattr(self, name)
            if connection is not None and (connection.closed or connection.broken):
                connection.close()
                setattr(self, name, None)

    def _open_writer(self) -> psycopg.Connection[Row]:
        if self._writer is None:
            connection = self._connect()
            try:
                _migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def _open_reader(self) -> psycopg.Connection[Row]:
        if self._reader is None:
            if self._writer is None:  # it makes the tables
                with self._locked(self._writing):
                    self._open_writer()
            self._reader = self._connect()
        return self._reader

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="headrace",
                client_encoding="utf8",  # else a database in SQL_ASCII gives bytes
                options=f"-c lock_timeout={LOCK_TIMEOUT_S}s",
            )
        except psycopg.ProgrammingError as error:  # the message may repeat the address
            raise StoreError("the address in `ledger` is none that PostgreSQL's library takes") from error
        connection.adapters.register_loader("numeric", _Whole)
        return connection


def _placed(sql: str) -> bytes:
    """With PostgreSQL's places for values. Bytes are what psycopg takes beside literal strings."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _busy(cause: str) -> StoreBusy:
    return StoreBusy(f"the ledger's PostgreSQL is busy ({cause}): try again in a moment", reason="store")


def _migrate(connection: psycopg.Connection[Row]) -> None:
    """Make the tables where they are missing. Raises StoreError if a newer version wrote them."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
        seen = {str(name) for (name,) in connection.execute("SELECT name FROM migrations").fetchall()}
        if unknown := seen - {LEDGER}:
            raise StoreError(
                f"the ledger was written by a newer version ({', '.join(sorted(unknown))} is not known "
                "here): update Headrace"
            )
        if not seen:
            for statement in statements():
                connection.execute(statement.encode())
            connection.execute("INSERT INTO migrations VALUES (%s)", (LEDGER,))
