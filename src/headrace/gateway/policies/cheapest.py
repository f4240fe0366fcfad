"""The cheapest target for the tokens of this request. A price that is not known is no low price: last.

But a model of this machine whose time is not known yet is asked first, as often as that takes: what it costs
is its time, which nothing would ever measure otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy, sorted_by
from headrace.gateway.speed import ENOUGH


def by_price(facts: Facts, candidates: Sequence[CandidateTarget]) -> list[RankedTarget]:
    """By the expected cost; of equal ones those that are first in the settings."""
    size = f"{facts.prompt_tokens:,} tokens in, {facts.output_tokens:,} out"

    def reason(one: CandidateTarget) -> str:
        if _is_unmeasured(one):
            return "its time here was not measured yet"
        return f"${(one.nano_usd or 0) / 1e9:.9f} for {size}"

    return sorted_by(
        candidates,
        lambda one: -1 if _is_unmeasured(one) else one.nano_usd,
        reason,
        "its price is not known",
    )


def _is_unmeasured(one: CandidateTarget) -> bool:
    return one.is_local and one.nano_usd is None and one.samples < ENOUGH


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    return by_price(facts, candidates)


POLICY = RoutePolicy(name="cheapest", order=_order)
