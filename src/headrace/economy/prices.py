"""The price book: what usage of a model at a time costs, or that this is not known; that is never zero."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.economy.price_list import PriceList
from headrace.economy.price_overrides import override_of, read_overrides
from headrace.economy.quantities import Quantities
from headrace.economy.rates import BillLine, Rates, Unpriced
from headrace.economy.tiers import Tier, tier_of


class Bill(Struct, frozen=True):
    """What usage costs: its lines, and where the price is from. `missing` says why
    it is unpriced, if it is."""

    lines: tuple[BillLine, ...]
    source: str
    missing: str = ""

    @property
    def nano_usd(self) -> int | None:
        """The total, None where it is unpriced."""
        return None if self.missing else sum(line.nano_usd for line in self.lines)


class PriceBook:
    """Prices of the settings first, then of the price list. The time of a request decides which holds."""

    def __init__(
        self, overrides: Mapping[str, object] | None = None, prices: PriceList | None = None
    ) -> None:
        """`overrides` is the setting `prices`. Raises UsageError where it is wrong."""
        self._overrides = read_overrides(overrides)
        self._list = prices or PriceList()

    @property
    def version(self) -> str:
        """Of the price list."""
        return self._list.version

    def rates(self, provider: str, model: str, tier: Tier, unix_s: float) -> Rates:
        """The rates of a provider's model. Raises Unpriced."""
        found = override_of(self._overrides, f"{provider}/{model}", tier, unix_s)
        if found is not None:
            return found
        try:
            return self._list.rates(provider, model, tier, unix_s)
        except Unpriced as reason:
            raise Unpriced(f"{reason} (processing: {tier})") from None

    def bill(
        self, provider: str, model: str, quantities: Quantities, *, processing: str, unix_s: float
    ) -> Bill:
        """The bill of some usage; `processing` is the provider's word for the way that it was processed."""
        try:
            rates = self.rates(provider, model, tier_of(processing), unix_s)
            return Bill(rates.bill(quantities), rates.source)
        except Unpriced as reason:
            return Bill((), "", str(reason))
