"""Whether a drafter pays, and when one that does not is tried again."""

from __future__ import annotations

TRIAL = 2.0  # steps that a trial may lose
PAID = 3.0  # steps: a trial that comes to so many pays
MAX_CREDIT = 4.0  # steps: gains beyond it do not pay for later losses
MAX_LOST_STEPS = 2.0  # that one measurement counts for, since it may be disturbed
FORGETTING = 1 / 256  # per step
MARGIN = 0.06
"""Steps that a step must gain. Beside what is measured, asking pushes the model out of the caches, and calls
that draft give smaller parts of answers to be sent: with 0.01 sixteen streams lost 6 % of throughput."""
MIN_INTERVAL, MAX_INTERVAL = 64, 4096  # steps between trials


class DrafterGain:
    """An exponentially weighted sum of what a drafter gains less what it costs, in steps without drafts.

    A drafter is active while the sum is positive. Then it rests for an interval, which doubles from rest to
    rest; after it a trial starts with a credit of TRIAL steps, and where the sum comes to PAID the interval
    is short again. So a drafter that never pays loses a few steps per interval, and one that begins to
    pay is found within the interval.

    What serves many steps to come, as a prompt that a draft model has to compute, is an investment: it is
    charged little by little, the rest when its request ends.
    """

    __slots__ = (
        "_invested",
        "_step",
        "credit",
        "interval",
        "prompt_s",
        "resting_until",
        "spent_s",
        "untested",
    )

    def __init__(self) -> None:
        self.credit = TRIAL
        self.interval = MIN_INTERVAL
        self.resting_until = 0  # step
        self.untested = True  # no draft has been verified in this trial
        self.spent_s = 0.0  # by the drafter, not yet charged ...
        self.prompt_s = 0.0  # ... and what of it is an investment
        self._invested = 0.0  # steps
        self._step = 0  # that is next

    def is_active(self, step: int) -> bool:
        """Whether to ask the drafter before this step; after a rest that begins a trial."""
        self._step = step
        if step < self.resting_until:
            return False
        if self.credit <= 0:
            self.credit, self.untested = TRIAL, True
        return True

    def grant_trial(self) -> None:
        """Begin a trial now: the client has announced what may pay."""
        self.resting_until, self.untested = 0, True
        self.credit = max(self.credit, TRIAL)

    def rest(self) -> None:
        """Rest for an interval, or as much longer as more than a step was lost."""
        self.resting_until = self._step + int(self.interval * max(1.0, -self.credit))
        self.interval = min(2 * self.interval, MAX_INTERVAL)
        self.credit = min(self.credit, 0.0)

    def settle(self, gained: float, lost_s: float, plain_s: float, steps: int = 1) -> None:
        """So many `steps` ran, and their drafts gained tokens worth `gained` steps. A step without drafts
        takes `plain_s`; verifying took `lost_s` more in all. What was `spent_s` is charged, too."""
        self._invested += self.prompt_s / plain_s
        lost_s += max(self.spent_s - self.prompt_s, 0.0)
        self.spent_s = self.prompt_s = 0.0
        kept = (1.0 - FORGETTING) ** steps
        due = self._invested * (1.0 - kept)
        self._invested -= due
        if self.credit > 0:
            self.credit *= kept
        self._add(max(gained - lost_s / plain_s, -MAX_LOST_STEPS) - due - MARGIN * steps)

    def write_off(self, share: float) -> None:
        """A request has ended: this share of what was invested is of no more use."""
        due = self._invested * share
        self._invested -= due
        self._add(-due)

    def _add(self, net: float) -> None:
        resting = self._step < self.resting_until
        self.credit = min(self.credit + net, MAX_CREDIT)
        if resting:
            self.resting_until += int(max(-net, 0.0) * self.interval)
        elif self.credit <= 0:
            self.rest()
        elif self.credit >= PAID:
            self.interval = MIN_INTERVAL
