"""What the gateway asks about money before it chooses: prices, and what is left of budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.inference.attempts import TokenCounts
from headrace.inference.requests import ChatRequest, EmbeddingRequest


class Payer(Struct, frozen=True, kw_only=True):
    """Who would pay for an attempt at a target."""

    account: str
    route: str
    target: str
    provider: str
    model: str


class RequestBound(Struct, frozen=True, kw_only=True):
    """The most that a request can come to at a remote model, in tokens and nano-dollars; None where no price
    is known, and `missing` says why. `estimate` is of prompt tokens, of which the bound is far above."""

    prompt_tokens: int
    output_tokens: int
    estimate: int
    nano_usd: int | None
    missing: str = ""


class RemoteBounds(Protocol):
    """What knows remote models before they are asked."""

    def most(self, request: ChatRequest | EmbeddingRequest) -> RequestBound | None:
        """The bound of a request; None where no remote model has the name."""
        ...


class PriceSource(Protocol):
    """Knows prices and budgets. Integer nano-dollars."""

    def price(
        self, provider: str, model: str, tokens: TokenCounts, seconds: float | None, tier: str = "standard"
    ) -> int | None:
        """What so many tokens cost, None where that is not known. A model of this machine (provider "") costs
        its time, at the owner's price per hour, and without one nothing that anybody bills. `tier` is the way
        of processing."""
        ...

    def most(self, provider: str, model: str, tokens: TokenCounts, tier: str = "standard") -> int | None:
        """The most that so many tokens can cost at a provider."""
        ...

    async def left(self, payers: Sequence[Payer]) -> list[float | None]:
        """Of each the least part of its budgets that is left, from 0 to 1; None without a budget."""
        ...


class NoPrices:
    """See `PriceSource`: nothing is known."""

    def price(
        self, provider: str, model: str, tokens: TokenCounts, seconds: float | None, tier: str = "standard"
    ) -> int | None:
        """See `PriceSource.price`."""
        return None

    def most(self, provider: str, model: str, tokens: TokenCounts, tier: str = "standard") -> int | None:
        """See `PriceSource.most`."""
        return None

    async def left(self, payers: Sequence[Payer]) -> list[float | None]:
        """See `PriceSource.left`."""
        return [None] * len(payers)
