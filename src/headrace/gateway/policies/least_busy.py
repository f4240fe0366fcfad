"""The target with the fewest requests of this server under way."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy, sorted_by


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    return sorted_by(candidates, lambda one: one.in_flight, lambda one: f"{one.in_flight} under way", "")


POLICY = RoutePolicy(name="least_busy", order=_order)
