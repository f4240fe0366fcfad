"""The cheapest target for the tokens of this request. A price that is not known is no low price: last."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy, sorted_by


def by_price(facts: Facts, candidates: Sequence[CandidateTarget]) -> list[RankedTarget]:
    """By the expected cost; of equal ones those that are first in the settings."""
    size = f"{facts.prompt_tokens:,} tokens in, {facts.output_tokens:,} out"
    return sorted_by(
        candidates,
        lambda one: one.nano_usd,
        lambda one: f"${(one.nano_usd or 0) / 1e9:.9f} for {size}",
        "its price is not known",
    )


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    return by_price(facts, candidates)


POLICY = RoutePolicy(name="cheapest", order=_order)
