"""A histogram that costs one bisection per value: counts per bucket, and the sum."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Upper bounds in seconds, inclusive; fine around typical latencies of a token or an answer."""


class Histogram:
    """For use by one thread. prometheus_client's own histogram takes two locks per value, for every token."""

    __slots__ = ("_counts", "bounds", "exemplars", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)
        self.exemplars: dict[int, tuple[str, float, float]] = {}
        """By bucket the latest value whose trace is known: the trace's id, the value, when (Unix time)."""

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self._counts)

    def counts(self) -> list[int]:
        """Values of each bucket; the last one has those above all bounds."""
        return list(self._counts)

    def observe(self, value: float, trace_id: str = "") -> None:
        """Add a value, of a request with that trace."""
        bucket = bisect_left(self.bounds, value)
        self._counts[bucket] += 1
        self.total += value
        if trace_id:
            self.exemplars[bucket] = trace_id, value, time.time()

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound as text, count of values up to it), as Prometheus expects them."""
        names = [*(repr(bound) for bound in self.bounds), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, accumulate(self._counts), strict=True)]
