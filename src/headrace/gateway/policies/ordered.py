"""The order of the settings: where a target fails the next one answers."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    return [RankedTarget(one, f"number {one.index + 1} of the settings") for one in candidates]


POLICY = RoutePolicy(name="ordered", order=_order)
