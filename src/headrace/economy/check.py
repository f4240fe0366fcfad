"""Whether the ledger adds up: its postings, its budgets, its holds, and its bills by the same prices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from headrace.economy.budgets import Budgets
from headrace.economy.ledger import Ledger
from headrace.economy.money import plain_usd
from headrace.economy.prices import PriceBook
from headrace.economy.rerate import reappraised
from headrace.storage.schema import MIGRATIONS

_TRIGGERS = {
    name for statement in MIGRATIONS["ledger"] for name in re.findall(r"CREATE TRIGGER (\w+)", statement)
}
_SHOWN = 20
"""Problems of one kind that are shown; the others are counted."""


class LedgerCheck(Struct, frozen=True):
    """`problems` are what is off, `notes` what is worth knowing."""

    entries: int
    postings: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check(ledger: Ledger, budgets: Budgets, prices: PriceBook) -> LedgerCheck:
    """Check all of the ledger. Holds that no process will settle are let go, which is noted."""
    database = ledger.database
    if not database.exists:
        return LedgerCheck(0, 0, (), ("there is no ledger yet",))
    lost = budgets.release_stale()
    [(entries, postings)] = database.query(
        "SELECT (SELECT count(*) FROM ledger_entries), (SELECT count(*) FROM ledger_postings)"
    )
    kinds = (_file(ledger), _sums(ledger), _charges(ledger), _holds(ledger), _bills(ledger, prices))
    problems = [text for kind in kinds for text in _first(kind)]
    notes = [*([f"{lost:,} holds of attempts that were lost are let go"] if lost else []), *_notes(ledger)]
    return LedgerCheck(int(entries or 0), int(postings or 0), tuple(problems), tuple(notes))


def _first(problems: Iterator[str]) -> list[str]:
    found = list(problems)
    more = [f"… and {len(found) - _SHOWN:,} more like this"] if len(found) > _SHOWN else []
    return found[:_SHOWN] + more


def _rows(ledger: Ledger, sql: str) -> list[Any]:
    return ledger.database.query(sql)


def _file(ledger: Ledger) -> Iterator[str]:
    for text in ledger.database.damage():
        yield f"the file is damaged: {text}"
    for name in sorted(_TRIGGERS - ledger.database.triggers()):
        yield f"the trigger {name}, which keeps the ledger from being changed, is gone"


def _sums(ledger: Ledger) -> Iterator[str]:
    for entry, nano in _rows(
        ledger, "SELECT entry, sum(nano_usd) FROM ledger_postings GROUP BY entry HAVING sum(nano_usd) != 0"
    ):
        yield f"the postings of entry {entry} sum to {nano:,} nano-dollars, not to 0"
    for (entry,) in _rows(
        ledger,
        "SELECT DISTINCT entry FROM ledger_postings WHERE entry NOT IN (SELECT id FROM ledger_entries)",
    ):
        yield f"there are postings of entry {entry}, and no such entry"
    for entry, total, debits in _rows(
        ledger,
        """SELECT * FROM (SELECT id, nano_usd, (SELECT coalesce(sum(nano_usd), 0) FROM ledger_postings
            WHERE entry = one.id AND class != '') AS debits
            FROM ledger_entries one) summed WHERE nano_usd != debits""",
    ):
        yield f"entry {entry} says {total:,} nano-dollars, its postings {debits:,}"


def _charges(ledger: Ledger) -> Iterator[str]:
    for budget, period, total, charged in _rows(
        ledger,
        """SELECT total.budget, total.period, total.nano_usd, coalesce(charged.nano_usd, 0)
            FROM budget_totals total LEFT JOIN (SELECT budget, period, sum(nano_usd) AS nano_usd
            FROM budget_charges GROUP BY budget, period) charged USING (budget, period)
            WHERE total.nano_usd != coalesce(charged.nano_usd, 0)""",
    ):
        yield f"the budget {budget!r} has {total:,} nano-dollars in {period}, its entries {charged:,}"
    for budget, period, entry, charged, nano in _rows(
        ledger,
        """SELECT charge.budget, charge.period, one.id, charge.nano_usd, one.nano_usd
            FROM budget_charges charge JOIN ledger_entries one ON one.id = charge.entry
            WHERE charge.nano_usd != one.nano_usd""",
    ):
        yield f"entry {entry} of {nano:,} nano-dollars counts {charged:,} for {budget!r} in {period}"


def _holds(ledger: Ledger) -> Iterator[str]:
    for hold, entry in _rows(
        ledger, "SELECT holds.id, one.id FROM holds JOIN ledger_entries one ON one.hold = holds.id"
    ):
        yield f"hold {hold} is still there, although entry {entry} has settled it"
    for hold, budget, share, nano in _rows(
        ledger,
        """SELECT share.hold, budget, share.nano_usd, holds.nano_usd FROM hold_shares share
            LEFT JOIN holds ON holds.id = share.hold
            WHERE share.nano_usd != coalesce(holds.nano_usd, 0) OR holds.id IS NULL""",
    ):
        yield f"hold {hold} of {nano} nano-dollars counts {share:,} for {budget!r}"


def _bills(ledger: Ledger, prices: PriceBook) -> Iterator[str]:
    """Entries that the same version of the price list billed otherwise."""
    for number, entry in ledger.entries(
        "kind = 'attempt' AND status IN ('measured', 'disputed') AND price_source = ?", (prices.version,)
    ):
        lines = {
            posting.name: (posting.quantity, posting.nano_usd)
            for posting in ledger.postings(number)
            if posting.name
        }
        found = reappraised(prices, entry, lines)
        again = {line.name: (line.quantity, line.nano_usd) for line in found.lines}
        if found.source == entry.price_source and again != lines:
            yield f"entry {number} says {lines}, its usage by {entry.price_source} is {again}"


def _notes(ledger: Ledger) -> Iterator[str]:
    [(unpriced, estimated, nano, lost, disputed, doubted)] = _rows(
        ledger,
        """SELECT count(*) FILTER (WHERE kind = 'attempt' AND status = 'unpriced'),
            count(*) FILTER (WHERE status = 'estimated'),
            coalesce(sum(nano_usd) FILTER (WHERE status = 'estimated'), 0),
            count(*) FILTER (WHERE kind = 'lost'), count(*) FILTER (WHERE status = 'disputed'),
            coalesce(sum(nano_usd) FILTER (WHERE status = 'disputed'), 0) FROM ledger_entries one
            WHERE NOT EXISTS (SELECT 1 FROM ledger_entries later WHERE later.corrects = one.id)""",
    )
    if unpriced:
        yield f"{unpriced:,} attempts are unpriced: set [prices] and run `headrace spend rerate`"
    if estimated:
        yield f"{estimated:,} attempts are estimated, ${plain_usd(nano)} in sum: `headrace spend reconcile`"
    if disputed:
        yield f"{disputed:,} attempts are disputed, ${plain_usd(doubted)} in sum: their usage cannot be right"
    if lost:
        yield f"{lost:,} attempts were lost before they were booked: `headrace spend reconcile`"
