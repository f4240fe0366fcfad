"""When a second target is asked besides a slow one: after the slow one's own 95th percentile, and rarely."""

from __future__ import annotations

from collections import deque

SAMPLES = 128
ENOUGH = 20
"""Answers of a target by which its times are known well enough."""
QUANTILE = 0.95
MAX_SHARE = 0.05


class FirstContentTimes:
    """The times to the first content of a target's last answers."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES)

    def add(self, seconds: float) -> None:
        """An answer began after so many seconds."""
        self._seconds.append(seconds)

    @property
    def slow_s(self) -> float | None:
        """The 95th percentile; None where too little is known."""
        if len(self._seconds) < ENOUGH:
            return None
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]


class HedgeShare:
    """Hedges at most MAX_SHARE of all requests."""

    def __init__(self) -> None:
        self.requests = self.hedged = 0

    def count(self) -> None:
        """A request that could be hedged has come."""
        self.requests += 1

    def take(self) -> bool:
        """Whether one more may be hedged; then it counts."""
        if self.hedged + 1 > MAX_SHARE * self.requests:
            return False
        self.hedged += 1
        return True
