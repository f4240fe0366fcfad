"""When something is looked for that nothing announces, and when steps without drafts are measured."""

from __future__ import annotations

from headrace.engine.speculative.step_cost_model import ENOUGH_S

PATIENCE = 2  # looks without any draft before steps are repeated without looking between them
LONGEST_REST = 8  # steps without any draft before drafts are looked for again
SEVERAL = 4  # sequences: for fewer a look costs little
PLAIN_EVERY, DRAFTS_S = 24, 16 * ENOUGH_S  # so much with drafts at least, between turns of steps without
MEASURE_EVERY = 8  # calls until one without drafts is measured again
LONGEST_SLEEP = 64  # steps, during which nothing is measured


class ProposalBackoff:
    """How often forced tokens and those of a draft model are looked for: looking takes its time, so that it
    is done less often where nothing comes of it."""

    __slots__ = ("_empty", "rest", "wanted")

    def __init__(self) -> None:
        self.rest = 0  # steps to go
        self._empty = 0  # times in a row that nothing was drafted
        self.wanted = False  # whether there is anything that could be found

    @property
    def rare(self) -> bool:
        """Whether calls of several steps need not be shorter for it."""
        return not self.wanted or self._empty >= PATIENCE

    def due(self, wanted: bool) -> bool:
        """Whether to look before the next step, and whether that is `wanted` at all."""
        self.wanted = wanted
        if self.rest > 0:
            self.rest -= 1
            return False
        return wanted

    def note(self, *, found: bool) -> None:
        """Something was found, or not."""
        self._empty = 0 if found else self._empty + 1
        self.rest = min(self._empty // 2, LONGEST_REST)

    def ran(self, steps: int) -> None:
        """So many steps ran in one call."""
        self.rest = max(self.rest - steps + 1, 0)


class LookupBackoff:
    """How often the texts of several sequences are looked at, one by one, between single steps: not after
    each of them where nothing comes of it."""

    __slots__ = ("_empty", "_left")

    def __init__(self) -> None:
        self._empty = 0  # looks in a row after which nothing was drafted
        self._left = 0  # steps to go

    def due(self, sequences: int) -> bool:
        """Whether to look at so many before the next step."""
        return self._left < 1 or sequences < SEVERAL

    def note(self, *, found: bool) -> None:
        """Something was drafted after a look, or not."""
        self._empty = 0 if found else self._empty + 1
        self._left = min(self._empty // 2, LONGEST_REST)

    def ran(self, steps: int) -> None:
        """So many steps ran in one call."""
        self._left = max(self._left - steps, 0)


class IdleBackoff:
    """Steps for which speculation is left alone, because nothing may be tried."""

    __slots__ = ("_from", "_steps", "_until")

    def __init__(self) -> None:
        self._steps = 0  # of a sleep that begins after the next step
        self._from, self._until = 0, 0

    def begin(self, steps: int) -> None:
        """Sleep for so many steps after the next one."""
        self._steps = min(steps, LONGEST_SLEEP)

    def lasts(self, steps: int) -> bool:
        """Whether to sleep on, when so many have run since the engine started."""
        if self._steps:
            self._from, self._until, self._steps = steps, steps + self._steps, 0
        return steps < self._until

    def wake(self) -> None:
        """End it before the next step."""
        self._steps, self._until = 0, self._from

    def end(self, steps: int) -> int:
        """It is over: the steps that it took."""
        slept = steps - self._from if self._until > 0 else 0
        self._from = self._until = 0
        return slept


class BaselineProbe:
    """When steps without drafts have their turn to be measured, lest what drafts are compared with is of
    another time: enough of them, since what follows a step with drafts finds cold caches."""

    __slots__ = ("_drafted_s", "_in_a_row", "_plain_s", "_unmeasured")

    def __init__(self) -> None:
        self._unmeasured = 0  # calls without drafts
        self._in_a_row, self._drafted_s = 0, 0.0  # calls with drafts, since the last turn
        self._plain_s = 0.0  # of this turn

    @property
    def due(self) -> bool:
        """Whether the next call is to be without drafts."""
        return self._in_a_row >= PLAIN_EVERY and self._drafted_s >= DRAFTS_S

    def note_drafts(self, seconds: float) -> None:
        """A call with drafts took so long."""
        self._in_a_row += 1
        self._drafted_s += seconds

    def put_off(self) -> None:
        """A call in its turn that says nothing; after many the turn is given up."""
        self._in_a_row = (self._in_a_row + 1) % (2 * PLAIN_EVERY)

    def measures(self, *, its_turn: bool) -> bool:
        """Whether this call without drafts is to be measured: in its turn each, or else some."""
        self._unmeasured += 1
        if not its_turn and self._unmeasured < MEASURE_EVERY:
            return False
        self._unmeasured = 0
        return True

    def note(self, seconds: float) -> None:
        """A call that was measured took so long."""
        self._plain_s += seconds
        if self._plain_s >= ENOUGH_S:
            self._in_a_row, self._drafted_s, self._plain_s = 0, 0.0, 0.0
