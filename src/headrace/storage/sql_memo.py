"""The file of values that models have given to statements, and how fast they were. It can be deleted at any
time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from headrace.storage.database import Database

MEMO_MIGRATIONS: Mapping[str, Sequence[str]] = {
    "sql_memo": (
        "CREATE TABLE memo (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, value BLOB NOT NULL)",
    ),
    "sql_speeds": ("CREATE TABLE speeds (key BLOB PRIMARY KEY, speed BLOB NOT NULL)",),
}
_AT_A_TIME = 500  # keys of one statement, which may have 999 parameters
_ENTRY_BYTES = 128  # of a row besides its value, about


def memo_file(store: Path) -> Path:
    """The file of the memo beside the store."""
    return store.with_name(f"{store.stem}-sql.sqlite3")


class SqlMemo:
    """Values by key, up to a number of bytes; the oldest go first. Thread-safe. Every call may raise
    StoreError."""

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        """`path` None: in memory."""
        self._database = Database(path, MEMO_MIGRATIONS)
        self._max_bytes = max_bytes
        self._bytes: int | None = None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values that there are."""
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _AT_A_TIME):
            part = keys[start : start + _AT_A_TIME]
            places = ", ".join("?" * len(part))
            rows = self._database.query(f"SELECT key, value FROM memo WHERE key IN ({places})", part)
            found |= cast("list[tuple[bytes, bytes]]", rows)
        return found

    def add(self, values: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep values: all of them or none."""
        with self._database.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO memo (key, value) VALUES (?, ?)", values)
            self._bytes = self._size() + sum(len(value) + _ENTRY_BYTES for _, value in values)
            if self._bytes > self._max_bytes:
                connection.execute(
                    """DELETE FROM memo WHERE number <= (
                        SELECT max(number) FROM (
                            SELECT number, sum(length(value) + ?) OVER (ORDER BY number DESC) AS later
                            FROM memo
                        ) WHERE later > ?)""",
                    (_ENTRY_BYTES, self._max_bytes * 9 // 10),
                )
                self._bytes = None

    def speed(self, key: bytes) -> bytes | None:
        """What `keep_speed` has kept."""
        rows = self._database.query("SELECT speed FROM speeds WHERE key = ?", (key,))
        return cast("bytes", rows[0][0]) if rows else None

    def keep_speed(self, key: bytes, speed: bytes) -> None:
        """Keep the speed of a model and function, in place of an earlier one."""
        self._database.execute("INSERT OR REPLACE INTO speeds VALUES (?, ?)", (key, speed))

    def clear(self) -> None:
        """Forget all."""
        with self._database.transaction():
            self._database.execute("DELETE FROM memo")
            self._database.execute("DELETE FROM speeds")
        self._bytes = None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _size(self) -> int:
        if self._bytes is None:
            [(size,)] = self._database.query(
                "SELECT coalesce(sum(length(value) + ?), 0) FROM memo", (_ENTRY_BYTES,)
            )
            return cast("int", size)
        return self._bytes
