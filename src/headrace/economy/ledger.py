"""The ledger: double entry in integer nano-dollars, only ever added to, in the store's SQLite file.

The tables refuse entries whose postings do not sum to zero, changes and deletions (`storage/schema.py`). A
store that several servers share over a network would be another class with these methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from msgspec.structs import astuple, replace

from headrace.economy.entries import ENTRY_FIELDS, Entry, Posting, postings_of
from headrace.economy.rates import BillLine
from headrace.storage.sql_store import Row, SqlStore

_COLUMNS = ", ".join(ENTRY_FIELDS)
_PLACES = ", ".join("?" for _ in range(len(ENTRY_FIELDS) + 2))


class Ledger:
    """The entries in a database. Its methods may be called within a transaction of the database."""

    def __init__(self, database: SqlStore) -> None:
        self.database = database

    def add(self, entry: Entry, lines: Sequence[BillLine]) -> int:
        """Write an entry with a debit for each line; its number. Its total is that of the lines."""
        entry = replace(entry, nano_usd=sum(line.nano_usd for line in lines))
        with self.database.transaction():
            [(last,)] = self.database.query("SELECT coalesce(max(id), 0) FROM ledger_entries")
            number = int(last or 0) + 1
            self.database.execute_many(
                "INSERT INTO ledger_postings VALUES (?, ?, ?, ?, ?, ?)",
                [(number, at, *astuple(one)) for at, one in enumerate(postings_of(entry, tuple(lines)))],
            )
            self.database.execute(
                f"INSERT INTO ledger_entries (id, day, {_COLUMNS}) VALUES ({_PLACES})",
                (number, entry.day, *astuple(entry)),
            )
        return number

    def attempt(self, request_id: str, number: int, hold: int) -> tuple[int, Entry] | None:
        """The entry of an attempt, or of the one that had this hold."""
        # Two look-ups, each with its index: one with OR would read all entries.
        rows = self.database.query(
            f"""SELECT id, {_COLUMNS} FROM ledger_entries
            WHERE kind = 'attempt' AND request_id = ? AND attempt = ? UNION ALL
            SELECT id, {_COLUMNS} FROM ledger_entries
            WHERE kind = 'attempt' AND hold = ? AND hold > 0 LIMIT 1""",
            (request_id, number, hold),
        )
        return _entry(rows[0]) if rows else None

    def has_machine_time(self, request_id: str, number: int) -> bool:
        """Whether part `number` of a request was booked."""
        where = "kind = 'machine' AND request_id = ? AND request_id != '' AND attempt = ?"
        return self.database.exists and self._first(where, (request_id, number)) is not None

    def entry(self, number: int) -> Entry:
        """The entry with a number."""
        found = self._first("id = ?", (number,))
        assert found is not None, number
        return found[1]

    def entries(self, where: str = "true", values: Sequence[float | str] = ()) -> Iterator[tuple[int, Entry]]:
        """Entries with their numbers, oldest first, read in parts so that a long ledger needs no memory."""
        last = 0
        while self.database.exists:
            rows = self.database.query(
                f"SELECT id, {_COLUMNS} FROM ledger_entries WHERE id > ? AND ({where}) "
                "ORDER BY id LIMIT 1000",
                (last, *values),
            )
            yield from map(_entry, rows)
            if not rows:
                return
            last = cast(int, rows[-1][0])

    def postings(self, number: int) -> list[Posting]:
        """The postings of an entry."""
        rows = self.database.query(
            "SELECT account, class, quantity, nano_usd FROM ledger_postings WHERE entry = ? ORDER BY line",
            (number,),
        )
        return [Posting(*cast("Any", row)) for row in rows]

    def lines(self, number: int) -> dict[str, tuple[int, int]]:
        """Quantity and amount of an entry by class, with its corrections."""
        rows = self.database.query(
            """SELECT class, sum(quantity), sum(posting.nano_usd) FROM ledger_postings posting
            JOIN ledger_entries one ON one.id = posting.entry
            WHERE (one.id = ? OR one.corrects = ?) AND class != '' GROUP BY class""",
            (number, number),
        )
        return {cast(str, name): (cast(int, count), cast(int, nano)) for name, count, nano in rows}

    def cost(self, number: int) -> int:
        """What an entry costs with its corrections."""
        [(nano,)] = self.database.query(
            "SELECT coalesce(sum(nano_usd), 0) FROM ledger_entries WHERE id = ? OR corrects = ?",
            (number, number),
        )
        return cast(int, nano)

    def _first(self, where: str, values: Sequence[int | str]) -> tuple[int, Entry] | None:
        rows = self.database.query(f"SELECT id, {_COLUMNS} FROM ledger_entries WHERE {where} LIMIT 1", values)
        return _entry(rows[0]) if rows else None


def _entry(row: Row) -> tuple[int, Entry]:
    number, *values = row
    return cast(int, number), Entry(**dict(zip(ENTRY_FIELDS, cast("Any", values), strict=True)))
