"""Money set aside for attempts under way, so that no budget is ever exceeded, by however many at the same
time.

An attempt's worst case is a hold until the attempt is settled. What was spent and what is held is compared
with the limits in one transaction of the store, which also orders several processes. A hold of a process
that has ended, or that is older than its lease, is let go, and an entry says that an attempt was lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

from msgspec import Struct

from headrace.economy.budget_settings import Attempted, Limit, SpendBudget
from headrace.economy.entries import Entry
from headrace.economy.holder import Holder, has_ended, machine_s, this_process
from headrace.economy.ledger import Ledger
from headrace.economy.money import plain_usd, shown_usd
from headrace.economy.worst_case import WorstCase
from headrace.errors import BudgetExceeded, PriceUnknown
from headrace.inference.attempts import Hold
from headrace.storage.sql_store import Row, SqlStore

KEPT = "kept"
"""The holder of money for what outlives this process, such as a line of a provider's batch."""
LEASE_S = 3600.0
"""How long a hold lasts whose holder cannot be asked: longer than attempts take."""


class StoredHold(Struct, frozen=True, kw_only=True):
    """A hold in the store; `shares` are the budgets and periods for which it counts."""

    id: int
    nano_usd: int | None
    created_s: float
    expires_s: float
    holder: str
    request_id: str
    key_name: str
    route: str
    target: str
    provider: str
    model: str
    processing: str
    shares: tuple[tuple[str, str], ...] = ()


class Budgets:
    """Reserves and charges. `clock` is the wall clock, which decides the day and month; `machine_clock`
    leases."""

    def __init__(
        self,
        database: SqlStore,
        budgets: Sequence[SpendBudget],
        *,
        clock: Callable[[], float] = time.time,
        machine_clock: Callable[[], float] = machine_s,
        holder: Holder | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.budgets = tuple(budgets)
        self._database, self._ledger = database, Ledger(database)
        self._clock, self._machine_clock = clock, database.shared_clock or machine_clock
        self._holder = (holder or this_process()).text
        self._lease_s = lease_s
        self._own: dict[int, Sequence[tuple[str, str]]] = {}  # of holds of this process, not to be read again
        self._is_shared = database.shared_clock is not None

    def covering(self, one: Attempted) -> list[SpendBudget]:
        """The budgets that an attempt counts for."""
        return [budget for budget in self.budgets if budget.covers(one)]

    def reserve(self, one: Attempted, worst: WorstCase, processing: str) -> Hold:
        """Set aside what an attempt can cost, or what is left where that is enough for less output.

        Raises BudgetExceeded or PriceUnknown.
        """
        covering = self.covering(one)
        strict = next((budget for budget in covering if budget.unpriced == "refuse"), None)
        if worst.nano_usd is None and strict is not None:
            raise PriceUnknown(
                f"the budget {strict.name!r} cannot be kept with {one.provider}/{one.model}: {worst.missing}"
            )
        limits = [limit for budget in covering for limit in budget.limits_of(one)]
        with self._database.transaction():
            most, output = self._granted_after_release(limits, worst)
            hold = self._hold(one, None if worst.nano_usd is None else most, processing, limits)
            self._own[hold] = [(limit.budget, limit.period) for limit in limits]
        return Hold(hold, None if worst.nano_usd is None else most, output if limits else None)

    def charge(self, entry: int, limits: Sequence[tuple[str, str]], nano_usd: int) -> None:
        """Count an entry for budgets and their periods."""
        self._database.execute_many(
            "INSERT INTO budget_charges VALUES (?, ?, ?, ?)",
            [(entry, budget, period, nano_usd) for budget, period in limits if period],
        )

    def find(self, hold: int) -> StoredHold | None:
        """The hold with this number, while it is there."""
        return next(iter(self.holds("id = ?", (hold,))), None)

    def shares(self, hold: int) -> Sequence[tuple[str, str]] | None:
        """The budgets and periods for which a hold counts; None where it is not known any more."""
        known = self._own.pop(hold, None)
        if known is None and (found := self.find(hold)) is not None:
            return found.shares
        return known

    def keep(self, hold: int, lease_s: float) -> None:
        """Hold money for so long, whatever becomes of this process."""
        self._own.pop(hold, None)
        self._database.execute(
            "UPDATE holds SET holder = ?, expires_s = ? WHERE id = ?",
            (KEPT, self._machine_clock() + lease_s, hold),
        )

    def release(self, hold: int) -> bool:
        """Let a hold go; whether it was there."""
        self._own.pop(hold, None)
        return self._database.execute("DELETE FROM holds WHERE id = ?", (hold,)) > 0

    def release_stale(self) -> int:
        """Let go what no process will settle any more; how many. The ledger says that these attempts were
        lost."""
        now_s = self._machine_clock()
        with self._database.transaction():
            others = self.holds("holder != ? OR expires_s <= ?", (self._holder, now_s))
            ended = {
                holder: has_ended(holder, is_shared=self._is_shared)
                for holder in {hold.holder for hold in others}
            }
            stale = [hold for hold in others if ended[hold.holder] or hold.expires_s <= now_s]
            for hold in stale:
                self._ledger.add(_lost(hold, self._clock()), ())
                self.release(hold.id)
        return len(stale)

    def holds(self, where: str = "true", values: Sequence[float | str] = ()) -> list[StoredHold]:
        """Holds, oldest first."""
        if not self._database.exists:
            return []
        names = StoredHold.__struct_fields__[:-1]
        rows = self._database.query(f"SELECT {', '.join(names)} FROM holds WHERE {where} ORDER BY id", values)
        return [self._stored(names, row) for row in rows]

    def used(self, budget: str, period: str) -> tuple[int, int]:
        """Nano-dollars spent and set aside of a budget in a period."""
        [(spent, held)] = self._database.query(
            """SELECT
                (SELECT coalesce(sum(nano_usd), 0) FROM budget_totals WHERE budget = ? AND period = ?),
                (SELECT coalesce(sum(nano_usd), 0) FROM hold_shares WHERE budget = ? AND period = ?)""",
            (budget, period, budget, period),
        )
        return cast(int, spent), cast(int, held)

    def _stored(self, names: Sequence[str], row: Row) -> StoredHold:
        shares = self._database.query("SELECT budget, period FROM hold_shares WHERE hold = ?", (row[0],))
        values = dict(zip(names, row, strict=True))
        return StoredHold(**values, shares=tuple(shares))  # type: ignore[arg-type]

    def _granted_after_release(self, limits: Sequence[Limit], worst: WorstCase) -> tuple[int, int | None]:
        """As `_granted`; where that is not all, holds that no process will settle are let go first."""
        try:
            granted = self._granted(limits, worst)
        except BudgetExceeded:
            if not self.release_stale():
                raise
            return self._granted(limits, worst)
        is_whole = worst.cost is None or granted[1] == worst.output
        return granted if is_whole or not self.release_stale() else self._granted(limits, worst)

    def _granted(self, limits: Sequence[Limit], worst: WorstCase) -> tuple[int, int | None]:
        """Nano-dollars and output within all limits. Raises BudgetExceeded."""
        if worst.nano_usd == 0 and worst.cost is None:  # of this machine: it is within every limit
            return 0, None
        found = worst.nano_usd or 0, worst.output if worst.cost is not None else None
        for limit in limits:
            spent, held = self.used(limit.budget, limit.period) if limit.period else (0, 0)
            granted = worst.within(limit.nano_usd - spent - held)
            if granted is None:
                least = worst.nano_usd or 0 if worst.cost is None else worst.cost(worst.least)
                raise BudgetExceeded(
                    f"the budget {limit.budget!r} allows ${plain_usd(limit.nano_usd)} in "
                    f"{_shown(limit.period)}: ${plain_usd(spent)} are spent, ${plain_usd(held)} set aside, "
                    f"and this attempt may cost ${plain_usd(least)}: wait, ask for fewer tokens, or raise it"
                )
            found = min(found, granted)
        return found

    def _hold(self, one: Attempted, most: int | None, processing: str, limits: Sequence[Limit]) -> int:
        number = self._database.insert(
            "INSERT INTO holds (nano_usd, created_s, expires_s, holder, request_id, key_name, route, "
            "target, provider, model, processing) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                *(most, one.unix_s, self._machine_clock() + self._lease_s, self._holder, one.request_id),
                *(one.key, one.route, one.target, one.provider, one.model, processing),
            ),
        )
        self._database.execute_many(
            "INSERT INTO hold_shares VALUES (?, ?, ?, ?)",
            [(number, limit.budget, limit.period, most or 0) for limit in limits if limit.period],
        )
        return number


def _shown(period: str) -> str:
    if not period or period.startswith("request "):
        return "one request"
    return "all" if period == "total" else period


def _lost(hold: StoredHold, now_s: float) -> Entry:
    most = "an unknown amount" if hold.nano_usd is None else f"up to {shown_usd(hold.nano_usd)}"
    return Entry(
        kind="lost",
        status="unpriced",
        reason=f"it was never settled: {most} may have been billed",
        started_s=hold.created_s,
        booked_s=now_s,
        request_id=hold.request_id,
        key_name=hold.key_name,
        route=hold.route,
        target=hold.target,
        provider=hold.provider,
        model=hold.model,
        processing=hold.processing,
        outcome="lost",
        billed="maybe",
        hold=hold.id,
    )
