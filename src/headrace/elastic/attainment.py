"""Which share of the recent requests kept the targets of the service level."""

from __future__ import annotations

import math
from collections import deque

from msgspec import Struct

WINDOW_S = 30.0
MIN_REQUESTS = 10
"""Fewer say nothing."""


class LatencyTargets(Struct, frozen=True, kw_only=True):
    """Seconds to the first token, and per token after it; infinite where there is no target."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return min(self.ttft_s, self.tpot_s) < math.inf

    def kept(self, ttft_s: float, total_s: float, tokens: int) -> bool:
        """By a request that has ended with so many tokens."""
        per_token_s = (total_s - ttft_s) / max(tokens - 1, 1)
        return ttft_s <= self.ttft_s and per_token_s <= self.tpot_s


class Attainment:
    """Counts requests that ended within WINDOW_S. For one thread at a time."""

    def __init__(self, targets: LatencyTargets) -> None:
        self.targets = targets
        self._ended: deque[tuple[float, bool]] = deque()
        self._kept = 0

    def note(self, now_s: float, kept: bool) -> None:
        """A request has ended."""
        self._ended.append((now_s, kept))
        self._kept += kept
        self._forget(now_s)

    def share(self, now_s: float, overdue: int = 0) -> float | None:
        """With `overdue` requests that have no first token after the target's time; None where there are too
        few in all."""
        self._forget(now_s)
        count = len(self._ended) + overdue
        return self._kept / count if count >= MIN_REQUESTS else None

    def _forget(self, now_s: float) -> None:
        while self._ended and now_s - self._ended[0][0] > WINDOW_S:
            self._kept -= self._ended.popleft()[1]
