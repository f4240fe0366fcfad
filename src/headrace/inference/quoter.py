"""What the gateway asks about money before it chooses: prices, and what is left of budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.inference.attempts import TokenCounts


class Payer(Struct, frozen=True, kw_only=True):
    """Who would pay for an attempt at a target."""

    account: str
    route: str
    target: str
    provider: str
    model: str


class Quoter(Protocol):
    """Knows prices and budgets. Integer nano-dollars."""

    def price(self, provider: str, model: str, tokens: TokenCounts, seconds: float | None) -> int | None:
        """What so many tokens cost, None where that is not known. A model of this machine (provider "") costs
        its time, at the owner's price per hour, and without one nothing that anybody bills."""
        ...

    def most(self, provider: str, model: str, tokens: TokenCounts) -> int | None:
        """The most that so many tokens can cost at a provider."""
        ...

    async def left(self, payers: Sequence[Payer]) -> list[float | None]:
        """Of each the least part of its budgets that is left, from 0 to 1; None without a budget."""
        ...


class NoQuotes:
    """See `Quoter`: nothing is known."""

    def price(self, provider: str, model: str, tokens: TokenCounts, seconds: float | None) -> int | None:
        """See `Quoter.price`."""
        return None

    def most(self, provider: str, model: str, tokens: TokenCounts) -> int | None:
        """See `Quoter.most`."""
        return None

    async def left(self, payers: Sequence[Payer]) -> list[float | None]:
        """See `Quoter.left`."""
        return [None] * len(payers)
