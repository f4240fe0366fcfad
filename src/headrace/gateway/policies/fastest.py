"""The target that answers a request of this size soonest, as far as it was measured.

One request of EXPLORED goes first to the target that was measured least: a target that nobody asks would
never be known, and one that was slow once would never be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy, sorted_by

EXPLORED = 0.05


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    ranked = sorted_by(
        candidates,
        lambda one: one.seconds,
        lambda one: f"{one.seconds:.2f} s expected",
        "it has not been measured",
    )
    if facts.draw >= EXPLORED or len(ranked) < 2:
        return ranked
    tried = min(ranked, key=lambda one: one.candidate.samples)
    rest = [one for one in ranked if one is not tried]
    return [RankedTarget(tried.candidate, f"measured again; {tried.reason}"), *rest]


POLICY = RoutePolicy(name="fastest", order=_order)
