"""Sums of the ledger: by key, model, provider, route or day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct

from headrace.economy.quantities import CLASSES
from headrace.storage.sql_store import SqlStore

By = Literal["key", "model", "provider", "route", "day", "class", "status"]
FIRST_DAY, LAST_DAY = "0000-01-01", "9999-12-31"

_NAME = "(CASE provider WHEN '' THEN 'local' ELSE provider END)"
_GROUPS: Mapping[By, str] = {
    "key": "one.key_name",
    "model": f"{_NAME} || '/' || one.model",
    "provider": _NAME,
    "route": "one.route",
    "day": "one.day",
    "class": "posting.class",
    "status": "one.status",
}
_UNCORRECTED = "NOT EXISTS (SELECT 1 FROM ledger_entries later WHERE later.corrects = one.id)"


class SpendRow(Struct, frozen=True, kw_only=True):
    """What one key, model, … spent. Of `nano_usd`, `estimated_nano_usd` is a bound or a count of ours;
    attempts that are `unpriced` or were `lost` are not in it."""

    name: str
    attempts: int
    input_tokens: int
    output_tokens: int
    nano_usd: int
    estimated_nano_usd: int
    unpriced: int
    lost: int


def spend_by(database: SqlStore, by: By, first: str = FIRST_DAY, last: str = LAST_DAY) -> list[SpendRow]:
    """A row for each name, of entries from the first to the last day; days in order, else the dearest
    first."""
    if not database.exists:
        return []
    amounts = {row[0]: row[1:] for row in database.query(_amounts(by), (first, last))}
    tokens = {row[0]: row[1:] for row in database.query(_tokens(by), (first, last))}
    rows = [_row(cast(str, name), amounts[name], tokens.get(name, (0, 0))) for name in amounts]
    rows.sort(key=lambda row: row.name if by == "day" else (-row.nano_usd, row.name))  # type: ignore[arg-type]
    return rows


def total_of(rows: Sequence[SpendRow], name: str = "total") -> SpendRow:
    """The sum of rows. Rows of classes share attempts, which a sum of theirs would count twice."""
    fields = [field for field in SpendRow.__struct_fields__ if field != "name"]
    return SpendRow(name=name, **{field: sum(getattr(row, field) for row in rows) for field in fields})


def _row(name: str, amounts: Sequence[Any], tokens: Sequence[Any]) -> SpendRow:
    return SpendRow(
        name=name,
        attempts=amounts[0],
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        nano_usd=amounts[1],
        estimated_nano_usd=amounts[2],
        unpriced=amounts[3],
        lost=amounts[4],
    )


def _amounts(by: By) -> str:
    """Name, attempts, nano-dollars, estimated ones, unpriced attempts, lost attempts."""
    if by == "class":
        return f"""SELECT posting.class, count(DISTINCT CASE one.kind WHEN 'attempt' THEN one.id END),
            sum(posting.nano_usd),
            coalesce(sum(posting.nano_usd) FILTER (WHERE one.status = 'estimated' AND {_UNCORRECTED}), 0),
            count(DISTINCT CASE WHEN one.status = 'unpriced' AND {_UNCORRECTED} THEN one.id END), 0
            FROM ledger_postings posting JOIN ledger_entries one ON one.id = posting.entry
            WHERE posting.class != '' AND one.day BETWEEN ? AND ? GROUP BY 1"""
    return f"""SELECT {_GROUPS[by]}, count(*) FILTER (WHERE one.kind = 'attempt'), sum(one.nano_usd),
        coalesce(sum(one.nano_usd) FILTER (WHERE one.status = 'estimated' AND {_UNCORRECTED}), 0),
        count(*) FILTER (WHERE one.kind = 'attempt' AND one.status = 'unpriced' AND {_UNCORRECTED}),
        count(*) FILTER (WHERE one.kind = 'lost')
        FROM ledger_entries one WHERE one.day BETWEEN ? AND ? GROUP BY 1"""


def _tokens(by: By) -> str:
    """Name, tokens of the input, tokens of the output."""

    def quoted(direction: str) -> str:
        return ", ".join(f"'{name}'" for name, kind in CLASSES.items() if kind.direction == direction)

    return f"""SELECT {_GROUPS[by]},
        coalesce(sum(posting.quantity) FILTER (WHERE posting.class IN ({quoted("input")})), 0),
        coalesce(sum(posting.quantity) FILTER (WHERE posting.class IN ({quoted("output")})), 0)
        FROM ledger_postings posting JOIN ledger_entries one ON one.id = posting.entry
        WHERE one.day BETWEEN ? AND ? GROUP BY 1"""
