"""Whether answers are wrong more often than was certified, watched for ever on a part of the traffic.

An e-process (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS
B; Ville 1939): a bettor's capital that grows only where the error rate is above `risk`. As long as it is not,
the capital ever reaches 1 / `alpha` with a probability of at most `alpha`, however long one looks and
whenever one stops.
"""

from __future__ import annotations

import math

from headrace.errors import InvalidRequest

BETS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Parts of the largest bet that is allowed. The capital is spread evenly over all of them."""


class DriftAlarm:
    """Fed with audited answers, in order. `is_raised` from the moment at which the capital suffices."""

    def __init__(self, risk: float, *, alpha: float = 0.01) -> None:
        if not 0 < risk < 1 or not 0 < alpha < 1:
            raise InvalidRequest(f"risk is {risk} and alpha {alpha}: both must be between 0 and 1")
        self.risk, self.alpha = risk, alpha
        self.audited = self.wrong = 0
        self.is_raised = False
        # A bet of b pays 1 + b (x - risk) for x = 1 (wrong) or 0: never less than 0 up to b = 1 / risk.
        self._wins = [math.log1p(part / risk * (1 - risk)) for part in BETS]
        self._losses = [math.log1p(-part) for part in BETS]

    def add(self, is_wrong: bool) -> bool:
        """Take one audited answer; whether the alarm is raised."""
        self.audited += 1
        self.wrong += is_wrong
        self.is_raised = self.is_raised or self.evidence >= 1 / self.alpha
        return self.is_raised

    @property
    def evidence(self) -> float:
        """The capital, which began with 1: so many times likelier is it that the rate is above `risk`."""
        right = self.audited - self.wrong
        logs = [self.wrong * win + right * loss for win, loss in zip(self._wins, self._losses, strict=True)]
        return math.fsum(math.exp(min(one, 700.0)) for one in logs) / len(logs)

    @property
    def error_rate(self) -> float:
        """Of the audited answers; 0 before the first."""
        return self.wrong / self.audited if self.audited else 0.0
