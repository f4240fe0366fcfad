"""The recorder of spending: prices, ledger and budgets behind what the gateway calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from headrace.economy.appraisal import Appraised, Evidence, appraise
from headrace.economy.budget_settings import Attempted, SpendBudget
from headrace.economy.budgets import LEASE_S, Budgets
from headrace.economy.entries import Entry
from headrace.economy.grouped_work import GroupedWork
from headrace.economy.holder import Holder, machine_s
from headrace.economy.ledger import Ledger
from headrace.economy.money import plain_usd
from headrace.economy.prices import PriceBook
from headrace.economy.quantities import quantities_of
from headrace.economy.rates import Unpriced
from headrace.economy.tiers import tier_of
from headrace.economy.worst_case import WorstCase
from headrace.inference.attempts import Attempt, Hold, TokenCounts
from headrace.storage.sql_store import SqlStore

LOG = logging.getLogger("headrace.economy")


class LedgerRecorder:
    """A SpendRecorder over the store. One thread of its own does its work, in the order in which it was
    called.

    `reserve` raises BudgetExceeded, PriceUnknown or StoreBusy; `settle` StoreError, and then the log has the
    attempt, and its hold ends by its lease.
    """

    def __init__(
        self,
        database: SqlStore,
        prices: PriceBook,
        budgets: Sequence[SpendBudget] = (),
        *,
        clock: Callable[[], float] = time.time,
        machine_clock: Callable[[], float] = machine_s,
        holder: Holder | None = None,
        lease_s: float = LEASE_S,
        counts_local: bool = True,
    ) -> None:
        """`counts_local`: tokens of models of this machine are booked with their attempts. Where this machine
        has a price, they are booked with its time instead."""
        self.prices = prices
        self.ledger = Ledger(database)
        self.budgets = Budgets(
            database, budgets, clock=clock, machine_clock=machine_clock, holder=holder, lease_s=lease_s
        )
        self._database, self._clock, self._counts_local = database, clock, counts_local
        self._work = GroupedWork(database, "headrace-ledger")

    def bounds(self, *, account: str, target: str, provider: str, model: str, route: str) -> bool:
        """See `SpendRecorder.bounds`."""
        if not self.budgets.budgets:
            return False
        names = {"key": account, "route": route, "target": target, "provider": provider, "model": model}
        one = Attempted(**names, request_id="", unix_s=0)
        return any(budget.reserve == "exact" for budget in self.budgets.covering(one))

    async def reserve(
        self,
        *,
        account: str,
        target: str,
        provider: str,
        model: str,
        most: TokenCounts,
        request_id: str = "",
        route: str = "",
        processing: str = "standard",
        least_output: int = 0,
    ) -> Hold:
        """Set aside what an attempt with at most these tokens can cost; see `SpendRecorder.reserve`."""
        one = Attempted(
            key=account,
            route=route,
            target=target,
            provider=provider,
            model=model,
            request_id=request_id,
            unix_s=self._clock(),
        )
        reserved = self._work.start(partial(self._reserve, one, most, processing, least_output))
        try:
            return await asyncio.shield(reserved)
        except asyncio.CancelledError:  # the caller is gone and will not settle
            reserved.add_done_callback(self._give_back)
            raise

    async def keep(self, hold: Hold, lease_s: float) -> None:
        """See `SpendRecorder.keep`."""
        await asyncio.shield(self._work.start(partial(self.budgets.keep, hold.id, lease_s)))

    async def settle(self, hold: Hold, attempt: Attempt) -> int | None:
        """Book an attempt; what it cost."""
        settled = self._work.start(partial(self._settle, hold, attempt))
        settled.add_done_callback(partial(_log_unbooked, attempt))
        return await asyncio.shield(settled)  # one that is cancelled meanwhile is booked all the same

    async def release(self, hold: Hold) -> None:
        """See `SpendRecorder.release`."""
        if hold.id:
            await asyncio.shield(self._work.start(partial(self.budgets.release, hold.id)))

    def configure(self, prices: PriceBook, budgets: Sequence[SpendBudget]) -> None:
        """Prices and budgets from now on. What is set aside already stays as it is."""
        self.prices, self.budgets.budgets = prices, tuple(budgets)

    def close(self) -> None:
        """Finish what was begun."""
        self._work.close()

    def _give_back(self, reserved: asyncio.Future[Hold]) -> None:
        if not reserved.cancelled() and reserved.exception() is None:
            self._work.submit(partial(self.budgets.release, reserved.result().id))

    def _reserve(self, one: Attempted, most: TokenCounts, processing: str, least_output: int) -> Hold:
        if not one.provider:  # the time of this machine is bought already
            return self.budgets.reserve(one, WorstCase(0), processing)
        try:
            rates = self.prices.rates(one.provider, one.model, tier_of(processing), one.unix_s)
            worst = WorstCase.of(rates, quantities_of(most), least_output)
        except Unpriced as reason:
            return self.budgets.reserve(one, WorstCase(None, missing=str(reason)), processing)
        return self.budgets.reserve(one, worst, processing)

    def _settle(self, hold: Hold, attempt: Attempt) -> int | None:
        with self._database.transaction():
            before = self.ledger.attempt(attempt.request_id, attempt.number, hold.id)
            if before is not None:
                if before[1].hold != hold.id:  # reserved twice for one attempt
                    self.budgets.release(hold.id)
                return None if before[1].status == "unpriced" else self.ledger.cost(before[0])
            counts = bool(attempt.provider) or self._counts_local
            found = appraise(self.prices, _evidence(attempt, hold, attempt.tokens if counts else None))
            number = self.ledger.add(_entry(attempt, found, hold, self._clock()), found.lines)
            self.budgets.charge(number, self._shares(attempt, hold), found.nano_usd or 0)
            if hold.id and self.budgets.release(hold.id):
                _compare(attempt, found.nano_usd or 0, hold)
            return found.nano_usd

    def _shares(self, attempt: Attempt, hold: Hold) -> Sequence[tuple[str, str]]:
        """The budgets and periods that it counts for: those that were asked, or those of its start."""
        known = self.budgets.shares(hold.id) if hold.id else None
        if known is not None:
            return known
        one = Attempted(
            key=attempt.account,
            route=attempt.route,
            target=attempt.target,
            provider=attempt.provider,
            model=attempt.provider_model,
            request_id=attempt.request_id,
            unix_s=attempt.started_unix_s,
        )
        limits = [limit for budget in self.budgets.covering(one) for limit in budget.limits_of(one)]
        return [(limit.budget, limit.period) for limit in limits]


def _log_unbooked(attempt: Attempt, settled: asyncio.Future[int | None]) -> None:
    if not settled.cancelled() and settled.exception() is not None:
        LOG.error("an attempt could not be booked: %s", msgspec.json.encode(attempt).decode())


def _compare(attempt: Attempt, nano_usd: int, hold: Hold) -> None:
    if hold.nano_usd is not None and nano_usd > hold.nano_usd:
        LOG.warning(
            "%s/%s cost $%s, set aside for it were $%s",
            *(attempt.provider, attempt.provider_model, plain_usd(nano_usd), plain_usd(hold.nano_usd)),
        )


def _evidence(attempt: Attempt, hold: Hold, tokens: TokenCounts | None) -> Evidence:
    return Evidence(
        provider=attempt.provider,
        model=attempt.provider_model,
        unix_s=attempt.started_unix_s,
        billed=attempt.billed,
        processing=attempt.processing,
        raw_usage=attempt.raw_usage,
        tokens=tokens,
        reported_nano_usd=attempt.reported_nano_usd,
        most=hold.nano_usd,
        plausible=attempt.plausible,
    )


def _entry(attempt: Attempt, found: Appraised, hold: Hold, now_s: float) -> Entry:
    return Entry(
        kind="attempt",
        status=found.status,
        reason=found.reason,
        started_s=attempt.started_unix_s,
        booked_s=now_s,
        request_id=attempt.request_id,
        attempt=attempt.number,
        attempt_kind=attempt.kind,
        key_name=attempt.account,
        route=attempt.route,
        target=attempt.target,
        provider=attempt.provider,
        model=attempt.provider_model,
        processing=attempt.processing,
        outcome=attempt.outcome,
        billed=attempt.billed,
        elapsed_s=attempt.elapsed_s,
        first_content_s=attempt.first_content_s,
        price_source=found.source,
        raw_usage=attempt.raw_usage,
        hold=hold.id,
    )
