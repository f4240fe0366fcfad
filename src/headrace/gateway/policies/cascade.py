"""The small model answers; where its score is below the certified threshold, the large one does."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    reasons = ("answers where its score is certified", "answers the others")
    return [RankedTarget(one, reasons[min(one.index, 1)]) for one in candidates]


def _check(settings: RemoteModelSettings, targets: Sequence[str]) -> str | None:
    if len(targets) != 2:
        return f"cascade takes two targets, a small and a large one; there are {len(targets)}"
    if settings.score == "verifier" and not settings.verifier:
        return 'score = "verifier" needs verifier: a classifier of this machine'
    if settings.hedge:
        return "hedge has no effect on a cascade: leave it out"
    return None


POLICY = RoutePolicy(name="cascade", order=_order, needs=frozenset({"gate"}), check=_check)
