"""Whether answers on which the nearest questions agree are served: only under a certificate.

How often they are wrong is learned for each kind of request from requests that are computed anyway, and
nothing is served before a certificate bounds it (`certificate.py`). Afterwards a part of the hits is computed
all the same, and an alarm of `drift.py` ends it where they are wrong more often.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.gateway.certificate import Certificate, certify, thresholds_of
from headrace.gateway.drift import DriftAlarm

FOR_THRESHOLDS = 100
"""Examples from which the thresholds come; those after them are for the certificate."""
AUDITED = 0.05
LOOKS = (250, 500, 1000, 2000, 4000)
"""Numbers of examples at which a certificate is tried; the 5 % that it may be wrong are divided by them."""


class NearGate:
    """Whether near answers are served for one kind of request."""

    def __init__(self, risk: float, *, draw: Callable[[], float] = random.random) -> None:
        self.certificate: Certificate | None = None
        self.risk, self._draw = risk, draw
        self._alarm = DriftAlarm(risk)
        self._scores: list[float] = []
        self._thresholds: list[float] = []
        self._examples: list[tuple[float, bool]] = []

    @property
    def is_closed(self) -> bool:
        """Whether near answers were wrong more often than certified; it stays so."""
        return self._alarm.is_raised

    def serves(self, score: float) -> bool:
        """Whether an agreed answer is served; False also for the part of them that is computed to see."""
        return self._is_certified(score) and self._draw() >= AUDITED

    def _is_certified(self, score: float) -> bool:
        return self.certificate is not None and not self.is_closed and score >= self.certificate.threshold

    def learn(self, score: float, is_wrong: bool) -> None:
        """An agreed answer was computed all the same, and was right or wrong."""
        if self._is_certified(score):
            self._alarm.add(is_wrong)
        if self.certificate is not None or len(self._examples) >= LOOKS[-1]:
            return
        if len(self._scores) < FOR_THRESHOLDS:
            self._scores.append(score)
            return
        self._examples.append((score, is_wrong))
        # One look at one number of examples: looks in between would each need confidence of their own.
        if len(self._examples) in LOOKS:
            self._certify(len(LOOKS))

    def _certify(self, looks: int) -> None:
        scores = [score for score, _ in self._examples]
        self._thresholds = thresholds_of(self._scores, len(scores), risk=self.risk)
        self.certificate = certify(
            scores,
            [is_wrong for _, is_wrong in self._examples],
            self._thresholds,
            risk=self.risk,
            confidence=1 - 0.05 / looks,
        )
