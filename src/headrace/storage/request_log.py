"""The request log: a line per answered request, within bounds; texts only if enabled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import astuple

from headrace.storage.database import Database
from headrace.storage.sql_store import Value

CLIENT_GONE = 499
TRIM_EVERY = 100  # lines of a key between two looks at whether it has too many
KEPT_SHARE = 0.9  # of the bytes, when there are too many
HISTORY_BYTES = 2**24  # of the requests that one statement of SQL reads
TRIM_ROWS = 200  # that are removed before the bytes are counted again
Outcome = Literal["completed", "failed", "cancelled"]


class LoggedRequest(Struct, frozen=True, kw_only=True):
    """One line. `arrived_s` is wall-clock time since 1970; durations count from arrival. `owner` is the key's
    name in the store, `explain` the JSON of the request's tree, `size_bytes` about what the line takes."""

    id: str
    arrived_s: float
    key_name: str | None
    method: str
    path: str
    status: int
    model: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    first_token_s: float | None
    total_s: float
    error: str | None
    body: bytes | None
    owner: str = ""
    trace_id: str = ""
    explain: bytes | None = None
    size_bytes: int = 0

    @property
    def outcome(self) -> Outcome:
        """What became of it: a stream may fail after the status was sent."""
        if self.status == CLIENT_GONE:
            return "cancelled"
        return "failed" if self.error is not None or self.status >= 400 else "completed"


class LogBounds(Struct, frozen=True, kw_only=True):
    """How much is kept: requests of each key, bytes of all together, seconds."""

    max_requests: int
    max_bytes: int
    max_age_s: float


class LogFilter(Struct, frozen=True, kw_only=True):
    """Which lines are read, newest first: those of `owner`, None for all, before the line `after`."""

    owner: str | None = None
    status: Outcome | None = None
    model: str | None = None
    endpoint: str | None = None
    key_name: str | None = None
    since_s: float = 0.0
    after: str | None = None
    limit: int = 50


_COLUMNS = ", ".join(LoggedRequest.__struct_fields__)
_PLACES = ", ".join("?" for _ in LoggedRequest.__struct_fields__)
_OUTCOMES = {
    "cancelled": f"status = {CLIENT_GONE}",
    "failed": f"(error IS NOT NULL OR status >= 400) AND status != {CLIENT_GONE}",
    "completed": "error IS NULL AND status < 400",
}


def write_log(database: Database, lines: list[LoggedRequest]) -> None:
    """Store the lines in one transaction. Raises StoreError on failure, in which case no line is stored."""
    database.execute_many(
        f"INSERT INTO request_log ({_COLUMNS}) VALUES ({_PLACES})", [astuple(line) for line in lines]
    )


def read_log(database: Database) -> list[LoggedRequest]:
    """All lines, oldest first."""
    return _lines(database.query(f"SELECT {_COLUMNS} FROM request_log ORDER BY arrived_s"))


def find_logged(database: Database, request_id: str, owner: str | None) -> LoggedRequest | None:
    """The latest request of that id, if it is of that `owner` (None: of anybody)."""
    whose, values = _whose(owner)
    found = database.query(
        f"SELECT {_COLUMNS} FROM request_log WHERE id = ?{whose} ORDER BY rowid DESC LIMIT 1",
        (request_id, *values),
    )
    return next(iter(_lines(found)), None)


def arrivals_of(database: Database, ids: Collection[str]) -> set[tuple[str, float]]:
    """Id and arrival of the lines of these ids."""
    places = ", ".join("?" for _ in ids)
    rows = database.query(f"SELECT id, arrived_s FROM request_log WHERE id IN ({places})", [*ids])
    return {(str(one), float(cast("float", arrived_s))) for one, arrived_s in rows}


def forget_logged(database: Database, request_id: str, owner: str | None) -> bool:
    """Delete all lines of that id of that `owner` (None: of anybody), also from the file."""
    if not database.exists:
        return False
    whose, values = _whose(owner)
    deleted = database.execute(f"DELETE FROM request_log WHERE id = ?{whose}", (request_id, *values))
    if deleted:
        database.erase_deleted()
    return bool(deleted)


def page_of_log(database: Database, wanted: LogFilter) -> list[LoggedRequest]:
    """Lines that match, newest first, without their trees and texts."""
    whose, values = _whose(wanted.owner)
    where = f"1{whose}"
    equal = (("model", wanted.model), ("path", wanted.endpoint), ("key_name", wanted.key_name))
    for column, value in equal:
        if value is not None:
            where += f" AND {column} = ?"
            values.append(value)
    if wanted.status is not None:
        where += f" AND ({_OUTCOMES[wanted.status]})"
    if wanted.since_s:
        where += " AND arrived_s > ?"
        values.append(wanted.since_s)
    if wanted.after is not None:  # a client may have sent an id twice: the older one, so that no page repeats
        where += f" AND rowid < (SELECT min(rowid) FROM request_log WHERE id = ?{whose})"
        values += [wanted.after, *_whose(wanted.owner)[1]]
    columns = _COLUMNS.replace(" body", " NULL AS body").replace(" explain", " NULL AS explain")
    rows = database.query(
        f"SELECT {columns} FROM request_log WHERE {where} ORDER BY rowid DESC LIMIT ?",
        (*values, wanted.limit),
    )
    return _lines(rows)


class LogPart(Struct, frozen=True):
    """The newest lines of a log, and how many older ones there are."""

    lines: list[LoggedRequest]
    left_out: int


def newest_of_log(database: Database, owner: str | None, max_bytes: int) -> LogPart:
    """The newest lines of that `owner` (None: of all), as many as have so many bytes."""
    whose, values = _whose(owner)
    rows = database.query(
        f"""SELECT {_COLUMNS} FROM (
            SELECT *, sum(size_bytes) OVER (ORDER BY rowid DESC) AS bytes FROM request_log WHERE 1{whose}
        ) WHERE bytes <= ?""",
        (*values, max_bytes),
    )
    [(count,)] = database.query(f"SELECT count(*) FROM request_log WHERE 1{whose}", values)
    return LogPart(_lines(rows), int(cast("int", count)) - len(rows))


class LogTrimmer:
    """Keeps a log within bounds. For one thread; it counts on its own what is added."""

    def __init__(self, database: Database, bounds: LogBounds) -> None:
        self._database, self._bounds = database, bounds
        self._added: Counter[str] = Counter()
        self._bytes: int | None = None

    def added(self, lines: Sequence[LoggedRequest], now_s: float) -> None:
        """After these lines were written: remove what is too much."""
        for line in lines:
            self._added[line.owner] += 1
        for owner in [owner for owner, count in self._added.items() if count >= self._every]:
            del self._added[owner]
            self._trim_count(owner)
            self._trim_age(now_s)
        if self._bytes is None:
            self._bytes = self._total()
        else:
            self._bytes += sum(line.size_bytes for line in lines)
        if self._bytes > self._bounds.max_bytes:
            self._trim_bytes()

    @property
    def _every(self) -> int:
        return min(TRIM_EVERY, max(1, self._bounds.max_requests // 10))

    def _trim_count(self, owner: str) -> None:
        self._database.execute(
            """DELETE FROM request_log WHERE owner = ? AND rowid <= (
                SELECT rowid FROM request_log WHERE owner = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?)""",
            (owner, owner, self._bounds.max_requests),
        )

    def _trim_age(self, now_s: float) -> None:
        oldest_s = now_s - self._bounds.max_age_s
        self._database.execute("DELETE FROM request_log WHERE arrived_s < ?", (oldest_s,))

    def _trim_bytes(self) -> None:
        """The key that has most loses its oldest: no key pushes out what others have."""
        left = self._total()
        while left > KEPT_SHARE * self._bounds.max_bytes:
            [(owner,)] = self._database.query(
                "SELECT owner FROM request_log GROUP BY owner ORDER BY sum(size_bytes) DESC LIMIT 1"
            )
            self._database.execute(
                """DELETE FROM request_log WHERE rowid IN (
                    SELECT rowid FROM request_log WHERE owner = ? ORDER BY rowid LIMIT ?)""",
                (owner, TRIM_ROWS),
            )
            left = self._total()
        self._bytes = left

    def _total(self) -> int:
        [(total,)] = self._database.query("SELECT coalesce(sum(size_bytes), 0) FROM request_log")
        return int(cast("int", total))


def _whose(owner: str | None) -> tuple[str, list[Value]]:
    return ("", []) if owner is None else (" AND owner = ?", [owner])


def _lines(rows: Sequence[Sequence[Any]]) -> list[LoggedRequest]:
    names = LoggedRequest.__struct_fields__
    return [LoggedRequest(**dict(zip(names, row, strict=True))) for row in rows]
