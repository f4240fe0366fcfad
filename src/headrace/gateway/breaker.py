"""A circuit breaker for each target: one that fails is left alone for a while, then one request tries it."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from headrace.providers.failure import Failure, clamped_wait

State = Literal["closed", "open", "half_open"]

FAILURES_IN_A_ROW = 5
WINDOW = 20
"""Attempts of which half may fail, if they are not older than WINDOW_S."""
WINDOW_S = 30.0
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 120.0
PERMANENT_PAUSE_S = 60.0
"""After a refused key, an empty account or an unknown model: only a person changes that."""


class Breaker:
    """The state of one target. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, bool]] = deque(maxlen=WINDOW)
        self._in_a_row = 0
        self._until_s = 0.0
        self._pause_s = 0.0
        self._probing = False
        self.cause: Failure | None = None
        """Why it is open."""

    @property
    def state(self) -> State:
        """Whether requests go to the target."""
        if self.cause is None:
            return "closed"
        return "open" if self._clock() < self._until_s or self._probing else "half_open"

    @property
    def wait_s(self) -> float:
        """Seconds until it may be tried again."""
        return 0.0 if self.cause is None else max(0.0, self._until_s - self._clock())

    def begin(self) -> bool:
        """Whether an attempt may be made now; of a half-open breaker the first one only. The caller
        says what became of an attempt that may be made."""
        state = self.state
        self._probing = self._probing or state == "half_open"
        return state != "open"

    def succeeded(self) -> None:
        """The target has answered."""
        self._recent.append((self._clock(), True))
        self._in_a_row, self._pause_s, self._probing, self.cause = 0, 0.0, False, None

    def dropped(self) -> None:
        """An attempt ended without a verdict about the target: cancelled, or the request was wrong."""
        self._probing = False

    def failed(self, failure: Failure) -> None:
        """The target has failed."""
        says_nothing = not failure.may_succeed_again and not failure.is_permanent
        if says_nothing or failure.is_of_request:
            self.dropped()
            return
        now_s = self._clock()
        self._recent.append((now_s, False))
        self._in_a_row += 1
        recent = [ok for at_s, ok in self._recent if now_s - at_s <= WINDOW_S]
        is_bad = len(recent) == WINDOW and recent.count(False) * 2 >= WINDOW
        asked_s = (
            clamped_wait(failure.retry_after_s) if failure.kind in ("rate_limit", "overloaded") else None
        )
        if failure.is_permanent:
            self._open(failure, PERMANENT_PAUSE_S)
        elif asked_s:
            self._open(failure, asked_s)
        elif self._in_a_row >= FAILURES_IN_A_ROW or is_bad or self._probing:
            self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self._open(failure, self._pause_s * random.uniform(0.8, 1.2))

    def _open(self, failure: Failure, pause_s: float) -> None:
        self._until_s = self._clock() + pause_s
        self._probing, self.cause = False, failure
