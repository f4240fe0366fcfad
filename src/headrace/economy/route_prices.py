"""Prices and what is left of budgets, as routes ask for them before they choose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from headrace.economy.budget_settings import Attempted
from headrace.economy.budgets import Budgets
from headrace.economy.money import NANO
from headrace.economy.prices import PriceBook
from headrace.economy.quantities import quantities_of
from headrace.economy.rates import Rates, Unpriced
from headrace.economy.tiers import STANDARD, tier_of
from headrace.inference.attempts import TokenCounts
from headrace.inference.price_source import Payer

KEPT_S = 60.0
"""Rates are looked up again after that: prices have dates."""
MAX_KEPT = 16_384
_HOUR_S = 3600


class RoutePrices:
    """See `inference.price_source.PriceSource`. `usd_per_hour` is the owner's price of this machine."""

    def __init__(
        self, prices: PriceBook, budgets: Budgets | None = None, usd_per_hour: float | None = None
    ) -> None:
        self._prices, self._budgets = prices, budgets
        self._nano_per_s = round((usd_per_hour or 0) * NANO) / _HOUR_S
        self._kept: dict[tuple[str, str, str], tuple[float, Rates | None]] = {}

    def _rates(self, provider: str, model: str, tier: str) -> Rates | None:
        key, now_s = (provider, model, tier), time.monotonic()
        known = self._kept.get(key)
        if known is not None and now_s - known[0] < KEPT_S:
            return known[1]
        try:
            found = self._prices.rates(provider, model, tier_of(tier), time.time())
        except Unpriced:
            found = None
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = (now_s, found)
        return found

    def price(
        self, provider: str, model: str, tokens: TokenCounts, seconds: float | None, tier: str = STANDARD
    ) -> int | None:
        """See `PriceSource.price`."""
        if not provider:
            if not self._nano_per_s:
                return 0
            return None if seconds is None else round(self._nano_per_s * seconds)
        rates = self._rates(provider, model, tier)
        try:
            bill = None if rates is None else rates.bill(quantities_of(tokens))
        except Unpriced:
            return None
        return None if bill is None else sum(line.nano_usd for line in bill)

    def most(self, provider: str, model: str, tokens: TokenCounts, tier: str = STANDARD) -> int | None:
        """See `PriceSource.most`."""
        if not provider:
            return 0
        rates = self._rates(provider, model, tier)
        try:
            return None if rates is None else rates.most(quantities_of(tokens))
        except Unpriced:
            return None

    async def left(self, payers: Sequence[Payer]) -> list[float | None]:
        """See `PriceSource.left`."""
        budgets = self._budgets
        if budgets is None or not budgets.budgets:
            return [None] * len(payers)
        return await asyncio.to_thread(_left, budgets, payers)


def _left(budgets: Budgets, payers: Sequence[Payer]) -> list[float | None]:
    now_s, used = time.time(), dict[tuple[str, str], int]()
    found: list[float | None] = []
    for payer in payers:
        one = Attempted(
            key=payer.account,
            route=payer.route,
            target=payer.target,
            provider=payer.provider,
            model=payer.model,
            request_id="",
            unix_s=now_s,
        )
        parts: list[float] = []
        for limit in (limit for budget in budgets.covering(one) for limit in budget.limits_of(one)):
            if not limit.period:
                continue
            key = (limit.budget, limit.period)
            if key not in used:
                used[key] = sum(budgets.used(*key))
            rest = limit.nano_usd - used[key]
            parts.append(max(0.0, rest / limit.nano_usd) if limit.nano_usd else 0.0)
        found.append(min(parts, default=None))
    return found
