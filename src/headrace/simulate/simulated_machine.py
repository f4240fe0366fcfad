"""A machine of a simulation: its replicas slow each other down while they compute at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.simulate.simulated_replica import SimulatedReplica


class SimulatedMachine:
    """Its clock, on which steps take what the costs say, runs as fast as each replica that computes.

    `speeds` are those of each replica while one, two, ... compute, relative to one alone; more than these
    share what the last of them make together.
    """

    __slots__ = ("_clock_s", "_from_s", "_rate", "_speeds", "end_s", "replicas")

    def __init__(self, speeds: Sequence[float]) -> None:
        self._speeds = tuple(speeds)
        self._rate: float = 1.0
        self._from_s: float = 0.0
        self._clock_s: float = 0.0
        self.replicas: list[SimulatedReplica] = []
        self.end_s: float = math.inf
        """When its next call ends, as long as nothing arrives."""

    def clock_s(self, at_s: float) -> float:
        """What its clock shows at a time of the trace."""
        return self._clock_s + (at_s - self._from_s) * self._rate

    def next(self) -> SimulatedReplica:
        """The replica whose call ends next."""
        return min(self.replicas, key=_end_s)

    def changed(self, at_s: float) -> None:
        """A call has begun or ended, or ends sooner than it would have."""
        if len(self.replicas) > 1:
            busy = sum(one.end_s < math.inf for one in self.replicas)
            rate = self._speed(busy) if busy else 1.0
            if rate != self._rate:
                self._clock_s, self._from_s, self._rate = self.clock_s(at_s), at_s, rate
        self.end_s = self._from_s + (self.next().end_s - self._clock_s) / self._rate

    def _speed(self, busy: int) -> float:
        known = len(self._speeds)
        return self._speeds[busy - 1] if busy <= known else self._speeds[-1] * known / busy


def _end_s(replica: SimulatedReplica) -> float:
    return replica.end_s
