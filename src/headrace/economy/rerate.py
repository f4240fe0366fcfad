"""Bills anew with the prices of now for the time of then: entries that correct, never changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.economy.appraisal import Appraised, Evidence, appraise
from headrace.economy.entries import Entry
from headrace.economy.ledger import Ledger
from headrace.economy.prices import PriceBook
from headrace.economy.quantities import CLASSES, Quantities
from headrace.economy.rates import BillLine


class Rerated(Struct, frozen=True):
    """An entry that costs something else now."""

    entry: int
    name: str
    day: str
    before_nano_usd: int
    after_nano_usd: int


def rerate(
    ledger: Ledger,
    prices: PriceBook,
    since: str,
    *,
    write: bool,
    clock: Callable[[], float] = time.time,
) -> list[Rerated]:
    """What attempts since a day cost by these prices, where that differs; with `write` corrections are
    booked.

    What a provider stated itself stays, and so does what has no price or no usage.
    """
    changed: list[Rerated] = []
    with ledger.database.transaction():
        where = "kind = 'attempt' AND day >= ? AND status NOT IN ('reported', 'not_billed')"
        for number, entry in ledger.entries(where, (since,)):
            before = ledger.lines(number)
            found = reappraised(prices, entry, before)
            if found.status == "unpriced":
                continue
            lines = _differences(before, found)
            if not lines:
                continue
            cost = ledger.cost(number)
            changed.append(Rerated(number, entry.name, entry.day, cost, found.nano_usd or 0))
            if write:
                _correct(ledger, number, entry, found, lines, clock())
    return changed


def reappraised(prices: PriceBook, entry: Entry, lines: Mapping[str, tuple[int, int]]) -> Appraised:
    """What an entry would be now: by its usage as it was received, or by the counts that stand in its
    lines."""
    counts = {name: quantity for name, (quantity, _) in lines.items() if name in CLASSES}
    return appraise(
        prices,
        Evidence(
            provider=entry.provider,
            model=entry.model,
            unix_s=entry.started_s,
            billed=entry.billed,
            processing=entry.processing,
            raw_usage=entry.raw_usage,
            tokens=Quantities(**counts) if counts else None,
        ),
    )


def _differences(before: Mapping[str, tuple[int, int]], found: Appraised) -> list[BillLine]:
    after = {line.name: (line.quantity, line.nano_usd) for line in found.lines}
    names = [*after, *(name for name in before if name not in after)]
    lines = [
        BillLine(
            name,
            *(new - old for new, old in zip(after.get(name, (0, 0)), before.get(name, (0, 0)), strict=True)),
        )
        for name in names
    ]
    return [line for line in lines if line.quantity or line.nano_usd]


def _correct(
    ledger: Ledger, number: int, entry: Entry, found: Appraised, lines: list[BillLine], now_s: float
) -> None:
    changes: dict[str, Any] = {"kind": "correction", "corrects": number, "booked_s": now_s, "hold": 0}
    correction = replace(
        entry,
        **changes,
        status=found.status,
        reason=found.reason or "billed anew",
        price_source=found.source,
        raw_usage=b"",
    )
    added = ledger.add(correction, lines)
    ledger.database.execute(
        """INSERT INTO budget_charges SELECT ?, budget, period, ? FROM budget_charges WHERE entry = ?""",
        (added, sum(line.nano_usd for line in lines), number),
    )
