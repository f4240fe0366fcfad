"""While nothing is drafted: the short way to see that there still is nothing to draft."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

from headrace.engine.sequence import Sequence
from headrace.engine.speculate.lookup import NOT_WATCHED, Lookup, Watched
from headrace.engine.turn import Turn

LONGEST = 32  # calls until everything is looked at again


@dataclass(slots=True, eq=False)
class Quiet:
    """What one look found: so many choices, all of them decoding, for which only these texts could say more,
    once they end with `least` tokens that stood in them before. Looking takes a few microseconds less than
    one at everything; calls of a small model take a millisecond."""

    choices: int
    texts: dict[int, tuple[Lookup, Sequence]]  # by sequence id; empty where none is watched
    least: int
    calls: int = 0

    def holds(self, choices: int) -> bool:
        """Whether it is so still. None of the choices may have ended since."""
        self.calls += 1
        if choices != self.choices or self.calls > LONGEST:
            return False
        for lookup, sequence in self.texts.values():
            if lookup.text.match_length >= self.least or not lookup.knows(sequence.tokens):
                return False
        return True

    def watched(self, turns: Several[Turn]) -> Watched:
        """For a call with these turns."""
        if not self.texts:
            return NOT_WATCHED
        found = [self.texts.get(turn.chunk.sequence.id) for turn in turns]
        return Watched([None if each is None else each[0].text for each in found], self.least)
