"""The file of the response cache: answers as bytes, by key. It can be deleted at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct
from msgspec.structs import astuple

from headrace.storage.database import Database

CACHE_MIGRATIONS: Mapping[str, Sequence[str]] = {
    "cached_answers": (
        """CREATE TABLE cached_answers (
            key BLOB PRIMARY KEY,
            tenant BLOB NOT NULL,
            model TEXT NOT NULL,
            identity BLOB NOT NULL,
            partition BLOB NOT NULL,
            vector BLOB NOT NULL,
            created_s REAL NOT NULL,
            used_s REAL NOT NULL,
            hits INTEGER NOT NULL,
            tokens INTEGER NOT NULL,
            nano_usd INTEGER,
            size_bytes INTEGER NOT NULL
        )""",
        """CREATE TABLE cached_bodies (
            key BLOB PRIMARY KEY REFERENCES cached_answers (key) ON DELETE CASCADE,
            digest BLOB NOT NULL,
            body BLOB NOT NULL
        )""",
        """CREATE TABLE cache_savings (
            model TEXT NOT NULL,
            kind TEXT NOT NULL,
            hits INTEGER NOT NULL,
            tokens INTEGER NOT NULL,
            nano_usd INTEGER NOT NULL,
            PRIMARY KEY (model, kind)
        )""",
        "CREATE TABLE cache_clock (id INTEGER PRIMARY KEY CHECK (id = 1), now_s REAL NOT NULL)",
    ),
}


class StoredAnswer(Struct, kw_only=True):
    """What is known of an answer besides its bytes. Times are seconds of the cache's own clock.

    `partition` are the answers among which a near one is looked for, b"" where that is never done; `vector`
    are the float32 numbers of the question. `tokens` are those of prompt and answer, `nano_usd` is what it
    cost, None where that is not known.
    """

    key: bytes
    tenant: bytes
    model: str
    identity: bytes
    partition: bytes = b""
    vector: bytes = b""
    created_s: float
    used_s: float
    hits: int = 0
    tokens: int
    nano_usd: int | None
    size_bytes: int


class Saving(Struct, frozen=True):
    """What hits of a kind have saved of a model's work."""

    model: str
    kind: str
    hits: int
    tokens: int
    nano_usd: int


_COLUMNS = ", ".join(StoredAnswer.__struct_fields__)
_PLACES = ", ".join("?" for _ in StoredAnswer.__struct_fields__)


def cache_file(store: Path) -> Path:
    """The file of the cache beside the store."""
    return store.with_name(f"{store.stem}-cache.sqlite3")


def open_cache(path: Path | None) -> Database:
    """The database of a cache; None: in memory."""
    return Database(path, CACHE_MIGRATIONS)


class CachedAnswers:
    """Reads and writes the file. Every call may raise StoreError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def all(self) -> list[StoredAnswer]:
        """Every answer without its bytes."""
        rows = self.database.query(f"SELECT {_COLUMNS} FROM cached_answers ORDER BY used_s")
        names = StoredAnswer.__struct_fields__
        return [StoredAnswer(**dict(zip(names, row, strict=True))) for row in rows]  # type: ignore[arg-type]

    def body(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Digest and bytes of an answer."""
        found = self.database.query("SELECT digest, body FROM cached_bodies WHERE key = ?", (key,))
        return cast("tuple[bytes, bytes]", found[0]) if found else None

    def add(self, answer: StoredAnswer, digest: bytes, body: bytes, now_s: float) -> None:
        """Keep an answer: all of it or nothing."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM cached_answers WHERE key = ?", (answer.key,))
            connection.execute(f"INSERT INTO cached_answers VALUES ({_PLACES})", astuple(answer))
            connection.execute("INSERT INTO cached_bodies VALUES (?, ?, ?)", (answer.key, digest, body))
            self._tick(now_s)

    def remove(self, keys: Sequence[bytes]) -> None:
        """Forget answers."""
        self.database.execute_many("DELETE FROM cached_answers WHERE key = ?", [(key,) for key in keys])

    def used(self, answers: Sequence[StoredAnswer], savings: Sequence[Saving], now_s: float) -> None:
        """Note when answers were used last, and what their hits have saved since the last call."""
        with self.database.transaction() as connection:
            connection.executemany(
                "UPDATE cached_answers SET used_s = ?, hits = ? WHERE key = ?",
                [(one.used_s, one.hits, one.key) for one in answers],
            )
            connection.executemany(
                """INSERT INTO cache_savings VALUES (?, ?, ?, ?, ?) ON CONFLICT (model, kind) DO UPDATE SET
                hits = hits + excluded.hits, tokens = tokens + excluded.tokens,
                nano_usd = nano_usd + excluded.nano_usd""",
                [astuple(one) for one in savings],
            )
            self._tick(now_s)

    def savings(self) -> list[Saving]:
        """All that was saved so far."""
        rows = self.database.query(
            "SELECT model, kind, hits, tokens, nano_usd FROM cache_savings ORDER BY model, kind"
        )
        return [Saving(*row) for row in rows]  # type: ignore[arg-type]

    def last_s(self) -> float:
        """The latest time of the cache's clock that was written, 0 where none was."""
        found = self.database.query("SELECT now_s FROM cache_clock")
        return float(cast(float, found[0][0])) if found else 0.0

    def _tick(self, now_s: float) -> None:
        self.database.execute(
            "INSERT INTO cache_clock VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET now_s = excluded.now_s",
            (now_s,),
        )
