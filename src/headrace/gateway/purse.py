"""The most money that attempts of one request may cost together."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.gateway.target_state import TargetState


class Purse:
    """`most` is the most that an attempt at each target can cost, nano-dollars. What was set aside counts in
    full: what a failed attempt costs is known late, or never."""

    def __init__(self, limit_nano_usd: int, most: Mapping[TargetState, int]) -> None:
        self._left, self._most = limit_nano_usd, most

    def allows(self, state: TargetState) -> bool:
        """Whether another attempt there is within the limit. A target without a known price is not."""
        most = self._most.get(state)
        return most is not None and most <= self._left

    def take(self, state: TargetState) -> None:
        """An attempt begins there."""
        self._left -= self._most[state]
