"""Turns over the machine's cores: the loops of several models compute on disjoint parts of them."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from headrace import _native

BATCH_PRIORITY = 100
"""From this priority on a request is of class batch."""
CONTENDED_S = 1.0
"""So long after another model has waited, steps stay short: it may be back at any moment."""


class Tier(IntEnum):
    """The class of a request or a turn; the lower goes first."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


def tier_of(priority: int, *, standard: Tier = Tier.STANDARD) -> Tier:
    """The class of a priority: interactive below 0, batch from BATCH_PRIORITY on, `standard` between."""
    if priority < 0:
        return Tier.INTERACTIVE
    return Tier.BATCH if priority >= BATCH_PRIORITY else standard


class TurnAsk(Struct, frozen=True):
    """What a loop says of its next step. `deadline_s` is a time of the monotonic clock. `whole`: while others
    want cores too it waits for all that it can use, instead of taking its part of them."""

    tier: Tier = Tier.STANDARD
    deadline_s: float = math.inf
    predicted_s: float = 0.0
    whole: bool = False


class Turns(Protocol):
    """Grants turns to one loop. All methods but `waiting` are for the loop's thread."""

    waiting: bool
    """The loop waits for its turn: that it makes no step is no fault of its own."""
    width: int
    """Threads of the turn; 0: all."""

    def attach(self, pool: _native.Pool) -> None:
        """From now on so many threads of `pool` compute as a turn has cores."""
        ...

    def join(self) -> None:
        """Before all others."""
        ...

    def begin(self, ask: TurnAsk) -> float:
        """Wait for a turn; seconds that it took."""
        ...

    def end(self, *, again: bool) -> None:
        """The turn has ended; `again`: the loop has more to compute."""
        ...

    def leave(self) -> None:
        """After all others, also where the loop has failed in its turn."""
        ...

    @property
    def contended(self) -> bool:
        """Whether another loop computes beside this one, waits, or has waited a moment ago."""
        ...


class NoTurns:
    """Of a loop that is alone in its process and machine: it may always compute."""

    waiting = False
    contended = False
    width = 0

    def attach(self, pool: _native.Pool) -> None:
        """All threads always compute."""

    def join(self) -> None:
        """Nothing to join."""

    def begin(self, ask: TurnAsk) -> float:
        """At once."""
        return 0.0

    def end(self, *, again: bool) -> None:
        """No other loop waits."""

    def leave(self) -> None:
        """Nothing was joined."""


class SharedTurns:
    """Turns of the loops that share an arena (native/turns/turns.hpp says in which order).

    `arena` is that of the file that the server made, or one of this process.
    """

    def __init__(self, arena: _native.Turns, *, share: float = 1.0) -> None:
        self._arena, self._share, self._slot = arena, share, -1
        self._pool: _native.Pool | None = None
        self._most = arena.cores
        self.waiting, self.width = False, 0

    def attach(self, pool: _native.Pool) -> None:
        """Narrow `pool` to the cores of each turn."""
        self._pool, self._most = pool, min(pool.threads, self._arena.cores)

    def join(self) -> None:
        """RuntimeError where the arena is full."""
        self._slot = self._arena.join(self._share, self._most)

    def begin(self, ask: TurnAsk) -> float:
        """Wait for a turn."""
        self.waiting = True
        waited_s = self._arena.begin(self._slot, ask.tier, ask.deadline_s, ask.predicted_s, ask.whole)
        self.waiting = False
        held = self._arena.held(self._slot)
        self.width = 0 if held == self._most else held
        if self._pool is not None:
            self._pool.set_width(self.width or self._pool.threads)
        return waited_s

    def end(self, *, again: bool) -> None:
        """Hand the turn on where another loop waits."""
        self._arena.end(self._slot, again)

    def leave(self) -> None:
        """Free the slot."""
        self._arena.leave(self._slot)

    @property
    def contended(self) -> bool:
        """Whether another loop computes beside this one, waits, or did within CONTENDED_S."""
        return self.width != 0 or self._arena.contended(CONTENDED_S)


@contextmanager
def joined(turns: Turns) -> Generator[None]:
    """Around a loop: a member from its first to its last turn."""
    turns.join()
    try:
        yield
    finally:
        turns.leave()
