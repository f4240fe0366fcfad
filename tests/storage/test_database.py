"""The SQLite file: opened on use, migrated to the current schema, safe between threads."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import StoreBusy, StoreError
from headrace.storage import database as databases
from headrace.storage.database import Database
from headrace.storage.schema import MIGRATIONS


def test_the_file_is_created_on_first_use_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "store.sqlite3"
    database = Database(path)
    assert not database.exists and not path.parent.exists()
    assert database.query("SELECT count(*) FROM keys") == [(0,)]
    assert database.exists
    assert path.stat().st_mode & 0o077 == 0
    database.close()


def test_migrations_run_once_and_keep_data(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    for _ in range(2):
        database = Database(path)
        database.execute("INSERT INTO secrets VALUES (hex(randomblob(8)), x'00')")
        names = [name for (name,) in database.query("SELECT name FROM migrations")]
        assert sorted(str(name) for name in names) == sorted(MIGRATIONS)
        database.close()
    assert Database(path).query("SELECT count(*) FROM secrets") == [(2,)]


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    database = Database(path)
    database.execute("INSERT INTO migrations VALUES ('from the future')")
    database.close()
    with pytest.raises(StoreError, match="newer version"):
        Database(path).query("SELECT 1")


def test_an_invalid_file_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Database(path).query("SELECT 1")


def test_a_transaction_is_all_or_nothing() -> None:
    database = Database(None)
    with pytest.raises(RuntimeError), database.transaction():
        database.execute("INSERT INTO secrets VALUES ('a', x'00')")
        raise RuntimeError
    assert database.query("SELECT * FROM secrets") == []
    with pytest.raises(StoreError), database.transaction():
        database.execute("INSERT INTO secrets VALUES ('a', x'00')")
        database.execute("INSERT INTO secrets VALUES ('a', x'01')")
    assert database.query("SELECT * FROM secrets") == []


def test_a_transaction_that_cannot_be_committed_leaves_nothing_open() -> None:
    database = Database(None)
    orphan = "INSERT INTO ledger_postings VALUES (7, 0, 'expense:x', 'x', 1, 0)"  # checked at the commit
    for _ in range(2):
        with pytest.raises(StoreError, match="FOREIGN KEY"):
            database.execute(orphan)
        assert database.query("SELECT count(*) FROM ledger_postings") == [(0,)]
    database.execute("INSERT INTO secrets VALUES ('a', x'00')")
    with pytest.raises(StoreError), database.transaction():
        database.execute("DELETE FROM secrets")
        database.execute("nonsense")
    assert database.query("SELECT count(*) FROM secrets") == [(1,)]


def test_threads_and_a_second_process_write_together(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite3")
    database.query("SELECT 1")

    def write(number: int) -> None:
        for count in range(20):
            database.execute("INSERT INTO secrets VALUES (?, x'00')", (f"{number}-{count}",))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    other = sqlite3.connect(tmp_path / "store.sqlite3", timeout=10)
    with other:
        other.execute("INSERT INTO secrets VALUES ('other', x'00')")
    other.close()
    for thread in threads:
        thread.join()
    assert database.query("SELECT count(*) FROM secrets") == [(81,)]
    database.close()


@contextmanager
def locked(path: Path, how: str = "IMMEDIATE") -> Iterator[None]:
    """As if another program wrote all the time."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(f"BEGIN {how}")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_reading_does_not_wait_for_the_lock_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_S", 1000.0)
    database = Database(tmp_path / "store.sqlite3")
    database.execute("INSERT INTO secrets VALUES ('a', x'00')")
    with locked(tmp_path / "store.sqlite3"):
        assert database.query("SELECT name FROM secrets") == [("a",)]
        again = Database(tmp_path / "store.sqlite3")  # opening a file that has every migration only reads
        assert again.query("SELECT name FROM secrets") == [("a",)]
        again.close()
    database.close()


def test_a_lock_of_another_program_is_an_error_that_says_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(databases, "STILL_BUSY_TIMEOUT_S", 0.0)
    database = Database(tmp_path / "store.sqlite3")
    database.query("SELECT 1")
    with locked(tmp_path / "store.sqlite3"):
        start_s = time.perf_counter()
        with pytest.raises(StoreBusy, match="try again") as refused:
            database.execute("INSERT INTO secrets VALUES ('a', x'00')")
        first_s = time.perf_counter() - start_s
        assert refused.value.status == 503 and refused.value.retry_after_s > 0
        start_s = time.perf_counter()
        for _ in range(3):  # those that queue up do not wait as long as the first
            with pytest.raises(StoreBusy):
                database.execute("INSERT INTO secrets VALUES ('a', x'00')")
        assert time.perf_counter() - start_s < 2 * first_s
    assert database.execute("INSERT INTO secrets VALUES ('a', x'00')") == 1
    assert not database._busy
    database.close()


def test_a_transaction_sees_what_it_wrote_and_others_do_not(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite3")
    seen: list[object] = []
    with database.transaction():
        database.execute("INSERT INTO secrets VALUES ('a', x'00')")
        assert database.query("SELECT count(*) FROM secrets") == [(1,)]
        other = threading.Thread(target=lambda: seen.append(database.query("SELECT count(*) FROM secrets")))
        other.start()
        other.join(10)
    assert seen == [[(0,)]]
    assert database.query("SELECT count(*) FROM secrets") == [(1,)]
    database.close()


def test_queries_cannot_write(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite3")
    with pytest.raises(StoreError, match="readonly"):
        database.query("DELETE FROM secrets RETURNING name")
    database.close()


def test_a_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    path.touch(mode=0o644)
    Database(path).query("SELECT 1")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_connection_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """Another process that comes and goes must not take the log away under those of this process."""
    path = tmp_path / "s.sqlite3"
    first, second = Database(path, {"a": ("CREATE TABLE t (n INTEGER)",)}), None
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        "c.execute('INSERT INTO t VALUES (1)'); c.commit(); c.close()"
    )
    try:
        first.execute("INSERT INTO t VALUES (0)")
        second = Database(path, {"a": ("CREATE TABLE t (n INTEGER)",)})
        second.execute("INSERT INTO t VALUES (0)")
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        assert path.with_name("s.sqlite3-wal").is_file()
        for one in (first, second):
            one.execute("INSERT INTO t VALUES (0)")
            assert one.damage() == []
        assert first.query("SELECT count(*) FROM t") == second.query("SELECT count(*) FROM t") == [(5,)]
    finally:
        first.close()
        if second is not None:
            second.close()
