"""What is left of the caller's budgets decides: first the order of the settings, then the cheapest target,
near the limit this machine only."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.cheapest import by_price
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    known = [one.left for one in candidates if one.left is not None]
    if not known:
        return [RankedTarget(one, "no budget") for one in candidates]
    left = min(known)
    said = f"{left:.0%} of a budget is left"
    if left >= settings.cheaper_below:
        return [RankedTarget(one, said) for one in candidates]
    local = [one for one in candidates if one.is_local]
    if left < settings.local_below and local:
        return [RankedTarget(one, f"{said}: this machine only") for one in local]
    return [RankedTarget(one.candidate, f"{said}: {one.reason}") for one in by_price(facts, candidates)]


def _check(settings: RemoteModelSettings, targets: Sequence[str]) -> str | None:
    if settings.local_below <= settings.cheaper_below:
        return None
    return (
        f"local_below is {settings.local_below:g}, it must not be above cheaper_below "
        f"({settings.cheaper_below:g})"
    )


POLICY = RoutePolicy(name="budget", order=_order, needs=frozenset({"left"}), check=_check)
