"""Whether a worker that has work makes steps, and how long to wait for one."""

from __future__ import annotations

import math

LOOK_S = 1.0
"""Seconds between two looks. Looks are counted, not seconds, so that a suspended machine is no stall."""
MIN_PATIENCE_S = 30.0
PATIENCE_STEPS = 10
"""A worker without a step for so many times the longest step seen, at least MIN_PATIENCE_S, is given up."""
FORGET_S = 600.0
"""So long without giving up, and one of the doublings that it brought is taken back."""


class StepWatch:
    """Counts looks without progress while there is work. For one thread; others may read `stalled_s`."""

    def __init__(self) -> None:
        self._progress: tuple[int, ...] | None = None
        self._looks = 0
        self._doublings = 0
        self._looks_since = 0  # since a worker was given up, or a doubling taken back

    @property
    def stalled_s(self) -> float:
        """Seconds without a step while there was work, up to the last look."""
        return self._looks * LOOK_S

    def look(self, progress: tuple[int, ...], *, works: bool) -> None:
        """`progress` changes with every step; without work there is none to expect."""
        self._looks = self._looks + 1 if works and progress == self._progress else 0
        self._progress = progress
        self._looks_since += 1
        if self._looks_since >= FORGET_S / LOOK_S and not self._looks:
            self._looks_since = 0
            self._doublings = max(0, self._doublings - 1)

    def overdue(self, longest_step_s: float) -> bool:
        """Whether to give the worker up."""
        return self._looks >= math.ceil(self.patience_s(longest_step_s) / LOOK_S)

    def patience_s(self, longest_step_s: float) -> float:
        """Seconds that a step may take."""
        return max(MIN_PATIENCE_S, PATIENCE_STEPS * longest_step_s) * 2**self._doublings

    def gave_up(self) -> None:
        """A worker was given up. Its step may have been a long one, so the next one gets twice as long, for a
        while."""
        self._doublings += 1
        self._looks = self._looks_since = 0
