"""The target that the settings name for the label that a classifier gives the request."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.names import nearest
from headrace.config.providers import RemoteModelSettings
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy


def _order(
    facts: Facts, candidates: Sequence[CandidateTarget], settings: RemoteModelSettings
) -> list[RankedTarget]:
    label = facts.label
    wanted = settings.tasks.get(label) if label is not None else None
    said = "no label" if label is None else f"label {label!r:.80} ({facts.scores[label]:.2f})"
    first = [one for one in candidates if one.name == wanted]
    rest = [one for one in candidates if one.name != wanted]
    return [RankedTarget(one, said) for one in first] + [
        RankedTarget(one, f"after that of {said}") for one in rest
    ]


def _check(settings: RemoteModelSettings, targets: Sequence[str]) -> str | None:
    if not settings.classifier or not settings.tasks:
        return "task needs classifier and tasks: labels, and the target of each"
    for label, target in settings.tasks.items():
        if not isinstance(target, str) or target not in targets:
            known = nearest(str(target), targets)
            return f"tasks.{label} is {target!r:.100}, which is none of its targets{known}"
    return None


POLICY = RoutePolicy(name="task", order=_order, needs=frozenset({"label"}), check=_check)
