"""Connections to the PostgreSQL database of indexes, and transactions in the schema of one."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from headrace.config.search_settings import IndexStore
from headrace.config.secrets import secret_of, without
from headrace.errors import StoreError
from headrace.search.index import IndexBusy, IndexDamaged, IndexUnreachable

Connection = psycopg.Connection[TupleRow]

PREFIX = "headrace_index_"
"""How the schemas of indexes begin."""
CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
"""Of one statement that reads."""
IDLE = 4
"""Connections that are kept for the next call."""
MOST = 16
_EXTENSION = b"""
SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
"""


class Pool:
    """Safe to share between threads and indexes. A password is in no message."""

    def __init__(self, store: IndexStore, where: str) -> None:
        """`where` is the setting's place, for errors about its secret."""
        self._store, self._where = store, where
        self._lock, self._turns = threading.Lock(), threading.BoundedSemaphore(MOST)
        self._idle: list[Connection] = []
        self._extension: str | None = None

    @contextmanager
    def reading(self, name: str) -> Generator[Connection]:
        """A transaction over one state of the index of that name."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
        begin += f" SET LOCAL statement_timeout = {READ_TIMEOUT_S}000; SET LOCAL jit = off"
        with self._transaction(name, begin) as connection:
            yield connection

    @contextmanager
    def writing(self, name: str) -> Generator[Connection]:
        """A transaction that writes to the index of that name. What a client leaves open that is gone, or its
        machine, ends."""
        begin = (
            f"BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_S}000;"
            " SET LOCAL idle_in_transaction_session_timeout = 60000"
        )
        with self._transaction(name, begin) as connection:
            yield connection

    @contextmanager
    def alone(self, name: str) -> Generator[Connection]:
        """A connection without a transaction, for an index of that name."""
        with self._turn(name), _typed(name):
            connection = self._take()
            try:
                yield connection
            finally:
                self._put(connection)

    def prepare(self, name: str) -> None:
        """Have the database know vectors. StoreError says who can, and that it has to take all texts."""
        with self.alone(name) as connection:
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(
                    f"the database of the index {name} has the encoding {encoding}, which does not have all"
                    " texts: make one by CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'"
                )
            if self._found_extension(connection) is not None:
                return
            try:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except errors.InsufficientPrivilege as error:
                raise StoreError(
                    f"the database of the index {name} does not have the extension vector, which this user"
                    " may not make: have its administrator run CREATE EXTENSION vector"
                ) from error
            except (errors.UndefinedFile, errors.FeatureNotSupported) as error:
                raise StoreError(
                    f"the PostgreSQL of the index {name} has no pgvector: install it there, such as by"
                    " apt-get install postgresql-17-pgvector"
                ) from error
            except errors.UniqueViolation:
                pass  # another has just made it

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _transaction(self, name: str, begin: str) -> Generator[Connection]:
        with self._turn(name), _typed(name):
            connection = self._take()
            try:
                path = ", ".join(
                    _quoted(one) for one in (PREFIX + name, self._found_extension(connection)) if one
                )
                connection.execute(f"{begin}; SET LOCAL search_path TO {path}".encode())
                yield connection
                connection.execute("COMMIT")
            finally:
                self._put(connection)

    @contextmanager
    def _turn(self, name: str) -> Generator[None]:
        if not self._turns.acquire(timeout=LOCK_TIMEOUT_S):
            raise IndexBusy(
                f"{MOST} other requests use the database of the index {name}: try again later", reason="index"
            )
        try:
            yield
        finally:
            self._turns.release()

    def _take(self) -> Connection:
        """A connection that answers."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            try:
                connection.execute("SELECT 1")
                return connection
            except psycopg.OperationalError:  # the server was started anew
                connection.close()

    def _put(self, connection: Connection) -> None:
        """Keep a connection; what it has not committed is undone."""
        try:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
            with self._lock:
                if not connection.closed and len(self._idle) < IDLE:
                    self._idle.append(connection)
                    return
        except psycopg.Error:
            pass
        connection.close()

    def _found_extension(self, connection: Connection) -> str | None:
        """The schema of the extension."""
        if self._extension is None:
            row = connection.execute(_EXTENSION).fetchone()
            self._extension = None if row is None else str(row[0])
        return self._extension

    def _connect(self) -> Connection:
        store = self._store
        assert store.store is not None
        password = None if store.secret is None else secret_of(store.secret, f"{self._where}.secret")
        try:
            return psycopg.connect(
                store.store,
                password=password,
                autocommit=True,
                prepare_threshold=None,  # a pooler may give each transaction another connection
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="headrace",
                client_encoding="utf8",
                keepalives_idle=30,  # a server whose machine is gone is noticed within a minute
                keepalives_interval=10,
                keepalives_count=3,
                tcp_user_timeout=60_000,
            )
        except psycopg.ProgrammingError as error:  # the message may repeat the address
            raise StoreError(f"{self._where}.store is no address that PostgreSQL's library takes") from error
        except psycopg.OperationalError as error:
            raise _Refused(without(str(error), [password or ""])) from None


class _Refused(Exception):
    """No connection came about, and why."""


@contextmanager
def _typed(name: str) -> Generator[None]:
    """Errors of PostgreSQL become typed ones that name the index. They are not quoted where they may say
    where the database is."""
    index = f"the index {name}" if name else "the indexes"
    try:
        yield
    except _Refused as error:
        is_refused = "authentication failed" in str(error) or "no password supplied" in str(error)
        what = "refuses the user or the password" if is_refused else "does not answer"
        raise IndexUnreachable(f"the database of {index} {what}", reason="index") from error
    except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as error:
        raise IndexBusy(
            f"{index} is being written by another program or request: try again later", reason="index"
        ) from error
    except errors.QueryCanceled as error:
        raise IndexBusy(
            f"the database of {index} did not answer in {READ_TIMEOUT_S} s: try again later", reason="index"
        ) from error
    except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName) as error:
        raise IndexDamaged(f"{index} has no tables in its database: ingest again") from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise IndexUnreachable(f"the database of {index} does not answer", reason="index") from error
    except psycopg.Error as error:
        said = error.diag.message_primary or type(error).__name__
        raise StoreError(f"the database of {index} failed: {said}") from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
