"""The SQLite file of an index: its tables, and connections to it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from headrace.errors import StoreError
from headrace.search.index import IndexBusy, IndexDamaged
from headrace.storage.database import open_private

FILE, LOCK = "index.sqlite", "lock"
_BUSY_S = 5.0
WAIT_S = 5.0
"""For another writer, which commits a portion at a time."""
TOKENIZER = "porter unicode61 remove_diacritics 2"
"""Of FTS5: how texts become words."""
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    """CREATE TABLE documents (
        number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, digest BLOB NOT NULL, title TEXT NOT NULL,
        attributes TEXT NOT NULL, generation INTEGER NOT NULL, at_s INTEGER NOT NULL
    )""",
    """CREATE TABLE chunks (
        id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents (number),
        position INTEGER NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, text TEXT NOT NULL
    )""",
    "CREATE UNIQUE INDEX chunks_by_document ON chunks (document, position)",
    "CREATE TABLE dead (id INTEGER PRIMARY KEY)",
    f"""CREATE VIRTUAL TABLE words USING fts5 (
        text, content = 'chunks', content_rowid = 'id', tokenize = '{TOKENIZER}'
    )""",
)
_FORMAT = 1


def make_file(folder: Path, meta: dict[str, str | int | float]) -> None:
    """Make the file of a new index; IndexBusy where another has just made it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = folder / f"{FILE}.{os.getpid()}.part"
    part.unlink(missing_ok=True)
    try:
        open_private(part)
        with closing(sqlite3.connect(part, isolation_level=None)) as made:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("BEGIN")
            for statement in _SCHEMA:
                made.execute(statement)
            rows = {"format": _FORMAT, "generation": 0, "files": 0, "rows": 0, "size": 0, "error": 0.0} | meta
            made.executemany("INSERT INTO meta VALUES (?, ?)", rows.items())
            made.execute("COMMIT")
        try:
            os.link(part, folder / FILE)  # fails where it is there
        except FileExistsError:
            raise IndexBusy(f"the index {folder.name} was just made by another program") from None
    except OSError as error:
        raise StoreError(f"the index {folder} cannot be made: {error.strerror}") from error
    finally:
        for end in ("", "-wal", "-shm"):
            part.with_name(part.name + end).unlink(missing_ok=True)


@contextmanager
def reading(folder: Path) -> Generator[sqlite3.Connection]:
    """A connection with one state of the index, which later writes do not change."""
    with _connection(folder) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield connection


@contextmanager
def writing(folder: Path) -> Generator[sqlite3.Connection]:
    """A connection in a transaction, of the one writer; IndexBusy where there is another."""
    with locked(folder), _connection(folder) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted data with zeros
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """While no other writes; the lock ends with its process."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end_s = time.monotonic() + WAIT_S
        while not _takes(descriptor):
            if time.monotonic() > end_s:
                raise IndexBusy(
                    f"the index {folder.name} is being written by another program or request: try again"
                    " later",
                    reason="index",
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _takes(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _connection(folder: Path) -> Generator[sqlite3.Connection]:
    try:
        path = (folder / FILE).resolve(strict=True).as_uri()
        with closing(
            sqlite3.connect(f"{path}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None)
        ) as connection:
            (found,) = connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
            if found != _FORMAT:
                raise IndexDamaged(f"the index {folder} has format {found}, this version reads {_FORMAT}")
            yield connection
    except FileNotFoundError as error:
        if Path(str(error.filename)).name.startswith("vectors-"):
            raise  # a compaction has replaced them meanwhile
        raise IndexDamaged(f"the index {folder} has no {FILE}: delete the folder and ingest again") from None
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise IndexBusy(
                f"the index {folder.name} is locked by another program", reason="index"
            ) from error
        raise StoreError(f"the index {folder} failed: {error}") from error
    except sqlite3.DatabaseError as error:
        raise IndexDamaged(f"the index {folder} is damaged ({error}): delete it and ingest again") from error


def meta_of(connection: sqlite3.Connection) -> dict[str, str | int | float]:
    """The table of single values."""
    return dict(connection.execute("SELECT name, value FROM meta"))


def set_meta(connection: sqlite3.Connection, values: dict[str, str | int | float]) -> None:
    """Change single values."""
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
