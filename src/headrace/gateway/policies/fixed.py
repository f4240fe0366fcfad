"""The first target only: where it fails the request fails."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    return [RankedTarget(one, "the only target") for one in candidates if one.index == 0]


def _check(settings: RemoteModelSettings, targets: Sequence[str]) -> str | None:
    return None if len(targets) == 1 else f"fixed takes one target, there are {len(targets)}"


POLICY = RoutePolicy(name="fixed", order=_order, check=_check)
