"""What speculation may lose: a bounded share of the steps, and what it has saved before."""

from __future__ import annotations

SHARE = 0.005  # of all steps
FIRST = 1.0  # steps that may be tried before anything has been saved
MOST = 4.0  # steps: so much is kept of what was saved, lest old luck pays for long losses
LEAST = -64.0  # steps: so much is remembered of what was lost
OVERDRAFT = 1.0  # steps: so much more may be lost where what was paid for already may still bring something
MAX_LOST_STEPS = 2.0  # steps: so much at most does one step with drafts count for, since it may be disturbed
WRITTEN_OFF = 1 / 256  # of what was invested, in each step


class SpeculationBudget:
    """The balance of one kind of drafts, in steps without drafts; with none left such drafts are not made.

    Estimates of what pays can be wrong; the balance counts what came of them, so that drafts which never pay
    cost SHARE of the time, and are tried again as often as that allows. What serves many steps to come, as a
    prompt computed by a draft model does, is written off over as many, or when its request ends.
    """

    __slots__ = ("_balance", "_exhausted", "_invested")

    def __init__(self) -> None:
        self._balance, self._invested = FIRST, 0.0
        self._exhausted = False  # the overdraft was used up, and is not paid back

    @property
    def open(self) -> bool:
        """Whether something may be tried."""
        return self._balance > 0

    @property
    def tolerant(self) -> bool:
        """Whether texts that have been taken may be watched: once the overdraft is used up, not before
        something may be tried again."""
        return self._balance > (0.0 if self._exhausted else -OVERDRAFT)

    @property
    def closed_for(self) -> int:
        """Steps that have to run until something may be tried, as far as one can know."""
        return 0 if self.open else 1 + int(-self._balance / SHARE)

    def earn(self, steps: int) -> None:
        """So many steps ran, with drafts or without."""
        self.write_off(1.0 - (1.0 - WRITTEN_OFF) ** steps)
        self._put(SHARE * steps)

    def note(self, saved: float) -> None:
        """Looking, drafting and checking saved so many steps; below zero it cost them."""
        self._put(max(saved, -MAX_LOST_STEPS))

    def invest(self, steps: float) -> None:
        """So much was spent on what steps to come need."""
        self._invested += steps

    def write_off(self, share: float) -> None:
        """So much of what was invested will be of no more use."""
        lost = self._invested * share
        self._invested -= lost
        self._put(-lost)

    def grant(self, steps: float) -> None:
        """So much may be tried now, whatever came of it before."""
        self._balance = max(self._balance, steps)
        self._exhausted = self._exhausted and not self.open

    def _put(self, steps: float) -> None:
        self._balance = max(min(self._balance + steps, MOST), LEAST)
        self._exhausted = self._balance <= (0.0 if self._exhausted else -OVERDRAFT)
