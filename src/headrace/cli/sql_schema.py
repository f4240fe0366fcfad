"""`--sql-schema`: tables and their columns, from a short text or from a file of CREATE TABLE statements."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from headrace.errors import UsageError
from headrace.grammar.constraint import GrammarError
from headrace.grammar.sql import sql_constraint

MAX_BYTES: Final = 1 << 20
_TABLE: Final = re.compile(r"\s*([^();]*[^();\s])\s*\(([^();]*)\)\s*(?:;|\n|$)\s*")
_CREATE: Final = re.compile(r"\bcreate\s+table\b", re.IGNORECASE)
_ALLOWED: Final = {
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_INSERT),
    *(sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_REINDEX),
    *(sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_FUNCTION),
}


def tables_of(given: str) -> dict[str, list[str]]:
    """Lists of columns by table; UsageError where `given` is neither a file of tables nor a text of them."""
    text = _text(given)
    tables = _created(text) if _CREATE.search(text) else _written(text)
    try:
        sql_constraint(tables, param="--sql-schema")
    except GrammarError as error:
        raise UsageError(error.message, param="sql_schema") from None
    return tables


def _text(given: str) -> str:
    if "(" in given:
        return given
    try:
        with Path(given).expanduser().open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise _wrong(f"{given} has more than {MAX_BYTES:,} bytes: give the CREATE TABLE statements alone")
        return content.decode()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise _wrong(f'{given[:200]} cannot be read ({cause}): give "TABLE(COLUMN, …)" or a file') from None


def _created(text: str) -> dict[str, list[str]]:
    """The tables that SQLite creates; it may do nothing else."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.set_authorizer(_allow)
        try:
            database.executescript(text)
        except (sqlite3.Error, ValueError) as error:
            raise _wrong(f"SQLite cannot read the tables ({error}): write them as TABLE(COLUMN, …)") from None
        database.set_authorizer(None)
        rows = database.execute(
            "SELECT m.name, p.name FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type = 'table'"
            " AND m.name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY m.rowid, p.cid"
        )
        tables: dict[str, list[str]] = {}
        for table, column in rows:
            tables.setdefault(table, []).append(column)
        return tables


def _allow(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _written(text: str) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    at = 0
    while at < len(text):
        found = _TABLE.match(text, at)
        if found is None:
            raise _wrong(f"at {text[at : at + 40]!r} is no table: write TABLE(COLUMN, …); …")
        tables[found[1].strip()] = [column.strip() for column in found[2].split(",")]
        at = found.end()
    return tables


def _wrong(cause: str) -> UsageError:
    return UsageError(f"--sql-schema: {cause}", param="sql_schema")
