"""The request log: one line per answered request; texts only if enabled."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple

from headrace.storage.database import Database


class LoggedRequest(Struct, frozen=True, kw_only=True):
    """One line. `arrived_s` is wall-clock time since 1970; durations count from arrival."""

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


_COLUMNS = ", ".join(LoggedRequest.__struct_fields__)
_PLACES = ", ".join("?" for _ in LoggedRequest.__struct_fields__)


def write_log(database: Database, lines: list[LoggedRequest]) -> None:
    """Store the lines in one transaction. Raises StoreError on failure, in which case no line is stored."""
    database.execute_many(
        f"INSERT INTO request_log ({_COLUMNS}) VALUES ({_PLACES})", [astuple(line) for line in lines]
    )


def read_log(database: Database) -> list[LoggedRequest]:
    """All lines, oldest first."""
    rows = database.query(f"SELECT {_COLUMNS} FROM request_log ORDER BY arrived_s")
    names = LoggedRequest.__struct_fields__
    return [LoggedRequest(**dict(zip(names, row, strict=True))) for row in rows]  # type: ignore[arg-type]
