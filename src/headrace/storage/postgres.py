"""A PostgreSQL database of several servers: the ledger, or what fronts share. Needs the extra postgres."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.errors import InvalidRequest, StoreBusy, StoreError
from headrace.storage.postgres_schema import LEDGER, MIGRATING, STORE, PostgresPart
from headrace.storage.sql_store import Row, Value

CONNECT_TIMEOUT_S = 5
LOCK_TIMEOUT_S = 10
TURN_TIMEOUT_S = 20.0
IDLE_TIMEOUT_S = 30
"""How long a transaction may stand still, whose server is stopped or cut off: the others wait for it."""
_CONNECTION = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "application_name": "headrace",
    # A machine that is gone says nothing. By itself the system would notice after two hours, in which keys
    # that were revoked elsewhere would stay valid here.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""What the address may say otherwise."""

_REFUSALS = (
    (
        ("authentication failed", "no password supplied", "no pg_hba.conf entry"),
        "refuses the user or the password",
    ),
    (("does not exist",), "has no such user or database"),
)
"""Words of PostgreSQL, which gives no codes before there is a connection, and what they are called here."""

PARTS = {"LEDGER": LEDGER, "STORE": STORE}


class _Whole(Loader):
    """Sums of whole numbers, which PostgreSQL calls numeric."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


class PostgresDatabase:
    """See `SqlStore`. `url` as libpq takes it; a password in it is in no message. The tables of each `part`
    are by themselves: transactions wait for those of the same part alone."""

    def __init__(self, url: str, part: PostgresPart = LEDGER) -> None:
        self._url, self._part = url, part
        # With another isolation, which a database may have by default, it would not see what others have
        # written while it waited for the lock.
        lock = f"SELECT pg_advisory_xact_lock({part.lock})"
        self._begin = f"BEGIN ISOLATION LEVEL READ COMMITTED; {lock}".encode()
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
                return self._open_writer().execute(_placed(sql), _checked(values)).fetchall()
        with self._locked(self._reading):
            return self._open_reader().execute(_placed(sql), _checked(values)).fetchall()

    def execute(self, sql: str, values: Sequence[Value] = ()) -> int:
        """See `SqlStore.execute`."""
        with self.transaction() as connection:
            return connection.execute(_placed(sql), _checked(values)).rowcount

    def insert(self, sql: str, values: Sequence[Value] = ()) -> int:
        """See `SqlStore.insert`."""
        with self.transaction() as connection:
            [(number,)] = connection.execute(_placed(sql), _checked(values)).fetchall()
        assert isinstance(number, int)
        return number

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """See `SqlStore.execute_many`."""
        if not rows:
            return
        with self.transaction() as connection, connection.cursor() as cursor:
            cursor.executemany(_placed(sql), [_checked(row) for row in rows])

    @contextmanager
    def transaction(self) -> Generator[psycopg.Connection[Row]]:
        """See `SqlStore.transaction`. It waits for its turn among all servers."""
        with self._locked(self._writing):
            connection = self._open_writer()
            if self._owner == threading.get_ident():
                yield connection
                return
            try:
                connection.execute(self._begin)  # where the turn does not come, a failed transaction is open
                self._owner = threading.get_ident()
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if not connection.closed:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._owner = None

    def erase_deleted(self) -> None:
        """See `SqlStore.erase_deleted`: when it overwrites deleted rows is PostgreSQL's matter (VACUUM)."""

    def erase_copies(self) -> None:
        """See `SqlStore.erase_copies`, and `erase_deleted`."""

    def damage(self) -> list[str]:
        """See `SqlStore.damage`: PostgreSQL looks after its own files."""
        return []

    def triggers(self) -> set[str]:
        """See `SqlStore.triggers`; those that are switched off are not there."""
        rows = self.query(
            "SELECT tgname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
            "WHERE tgenabled != 'D' AND pg_table_is_visible(pg_class.oid)"
        )
        return {str(name) for (name,) in rows} & self._part.triggers

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
            raise self._busy("another request writes")
        try:
            yield
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as error:
            raise self._busy("other servers write") from error
        except errors.ReadOnlySqlTransaction as error:  # it is a standby by now, and another one writes
            self._drop(writer=True)
            raise self._busy("it only reads") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self._drop()
            raise self._busy("it does not answer") from error
        except psycopg.Error as error:
            self._drop()  # it may have ended the connection of a transaction that stood still
            said = error.diag.message_primary or type(error).__name__
            raise StoreError(f"the {self._part.name}'s PostgreSQL failed: {said}") from error
        finally:
            lock.release()

    def _busy(self, cause: str) -> StoreBusy:
        return StoreBusy(
            f"the {self._part.name}'s PostgreSQL is busy ({cause}): try again in a moment", reason="store"
        )

    def _check_refusal(self, said: str) -> None:
        """StoreBusy where PostgreSQL answers and takes no connection of this address. What it says is not
        quoted: clients read the message."""
        for words, what in _REFUSALS:
            if any(word in said for word in words):
                raise StoreBusy(
                    f"the {self._part.name}'s PostgreSQL {what}: the operator must check its address "
                    "in `ledger`",
                    reason="store",
                )

    def _drop(self, *, writer: bool = False) -> None:
        """Leave connections that are broken, with `writer` that one in any case: the next call makes new
        ones."""
        for name in ("_reader", "_writer"):
            connection = getattr(self, name)
            is_left = writer and name == "_writer"
            if connection is not None and (is_left or connection.closed or connection.broken):
                connection.close()
                setattr(self, name, None)

    def _open_writer(self) -> psycopg.Connection[Row]:
        if self._writer is None:
            connection = self._connect()
            try:
                _migrate(connection, self._part)
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
            given = conninfo_to_dict(self._url)
            address = make_conninfo(
                self._url,
                **{name: value for name, value in _CONNECTION.items() if name not in given},
                client_encoding="utf8",  # else a database in SQL_ASCII gives bytes
                options=f"{given.get('options', '')} -c lock_timeout={LOCK_TIMEOUT_S}s "
                f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT_S}s",
            )
            connection = psycopg.connect(address, autocommit=True)
        except psycopg.ProgrammingError:  # its message may repeat the address, also in a traceback
            raise StoreError("the address in `ledger` is none that PostgreSQL's library takes") from None
        except psycopg.OperationalError as error:
            self._check_refusal(str(error))
            raise
        connection.adapters.register_loader("numeric", _Whole)
        return connection


def _placed(sql: str) -> bytes:
    """With PostgreSQL's places for values. Bytes are what psycopg takes beside literal strings."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _checked(values: Sequence[Value]) -> Sequence[Value]:
    """The values, none of which has what PostgreSQL keeps in no text. Raises InvalidRequest."""
    if any(isinstance(value, str) and "\0" in value for value in values):
        raise InvalidRequest("a text has the character U+0000, which cannot be kept: send it without")
    return values


def _migrate(connection: psycopg.Connection[Row], part: PostgresPart) -> None:
    """Make the tables where they are missing. Raises StoreError if a newer version wrote them."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATING,))
        connection.execute(f"CREATE TABLE IF NOT EXISTS {part.table} (name TEXT PRIMARY KEY)".encode())
        rows = connection.execute(f"SELECT name FROM {part.table}".encode()).fetchall()
        seen = {str(name) for (name,) in rows}
        if unknown := seen - set(part.migrations):
            raise StoreError(
                f"the {part.name} was written by a newer version ({', '.join(sorted(unknown))} is not known "
                "here): update Headrace"
            )
        for name, statements in part.migrations.items():
            if name not in seen:
                for statement in statements:
                    connection.execute(statement.encode())
                connection.execute(f"INSERT INTO {part.table} VALUES (%s)".encode(), (name,))
