"""System 1 and System 2: requests that a classifier calls hard go to the last target, with more reasoning.

A classifier's word has no bound. Where a bound is needed, use a cascade.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy

LEAST_HARD = 0.5


def is_hard(facts: Facts, settings: RemoteModelSettings) -> bool:
    """Whether hard labels have half of the probability; a request without a label is hard."""
    return not facts.scores or sum(facts.scores.get(one, 0.0) for one in settings.hard) >= LEAST_HARD


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    hard = sum(facts.scores.get(one, 0.0) for one in settings.hard)
    said = f"hard with a probability of {hard:.2f}" if facts.scores else "its difficulty is not known"
    ordered = reversed(candidates) if is_hard(facts, settings) else candidates
    return [RankedTarget(one, said) for one in ordered]


def _check(settings: RemoteModelSettings, targets: Sequence[str]) -> str | None:
    if not settings.classifier:
        return "difficulty needs classifier: a model of this machine"
    return None if len(targets) >= 2 else "difficulty takes two targets at least, the one for hard ones last"


POLICY = RoutePolicy(name="difficulty", order=_order, needs=frozenset({"label"}), check=_check)
