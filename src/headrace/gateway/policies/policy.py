"""What a policy is: a function of a request's facts and its targets' states to an order, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from headrace.config.providers import RemoteModelSettings

Need = Literal["label", "left", "gate"]
"""What is found out for a policy before it orders: the label of the request, what is left of budgets. With
"gate" the targets are a small and a large model, and a certificate decides which of them answers."""


class Facts(Struct, frozen=True, kw_only=True):
    """A request as policies see it. `prompt_tokens` and `output_tokens` are estimates. `scores` are those of
    the classifier's labels, empty where there is none or it failed. `draw` is random, from 0 to 1, below 1:
    policies have no randomness of their own."""

    prompt_tokens: int
    output_tokens: int
    scores: Mapping[str, float] = {}
    draw: float = 1.0

    @property
    def label(self) -> str | None:
        """The likeliest label."""
        return max(self.scores, key=self.scores.__getitem__, default=None)


class CandidateTarget(Struct, frozen=True, kw_only=True):
    """A target as policies see it. `index` is its place in the settings.

    `nano_usd` is what this request is expected to cost there, `most_nano_usd` the most it can cost; None: the
    price is not known. `seconds` is how long it is expected to take, None while the target has not been
    measured; `samples` are its measurements. `left` is the part of the caller's budgets for it that is left,
    None without a budget.
    """

    index: int
    name: str
    is_local: bool
    nano_usd: int | None = None
    most_nano_usd: int | None = None
    seconds: float | None = None
    samples: int = 0
    in_flight: int = 0
    left: float | None = None


class RankedTarget(Struct, frozen=True):
    """A target in the order of a policy, and why it has its place."""

    candidate: CandidateTarget
    reason: str


Order = Callable[[Facts, Sequence[CandidateTarget], RemoteModelSettings], list[RankedTarget]]


class RoutePolicy(Struct, frozen=True, kw_only=True):
    """A policy. `check` says what is wrong with the settings of a route, given the names of its targets."""

    name: str
    order: Order
    needs: frozenset[Need] = frozenset()
    check: Callable[[RemoteModelSettings, Sequence[str]], str | None] = lambda settings, targets: None


def sorted_by(
    candidates: Sequence[CandidateTarget],
    value: Callable[[CandidateTarget], float | None],
    reason: Callable[[CandidateTarget], str],
    unknown: str,
) -> list[RankedTarget]:
    """By a value, least first; equal ones stay in the order of the settings, unknown ones come last."""

    def key(one: CandidateTarget) -> tuple[bool, float]:
        found = value(one)
        return found is None, 0.0 if found is None else found

    return [
        RankedTarget(one, unknown if value(one) is None else reason(one))
        for one in sorted(candidates, key=key)
    ]
