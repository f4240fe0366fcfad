"""What proposes the next tokens of choices, for a step to verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from headrace.engine.request_state import ChoiceState
from headrace.engine.speculative.acceptance import OwnRate
from headrace.engine.speculative.drafter_gain import DrafterGain
from headrace.engine.speculative.step_cost_model import StepCosts

MAX_DRAFTED = 31  # tokens of one sequence


class Draft(Struct, eq=False):
    """Tokens that may follow a choice's text, of which `count` are to be verified. Each is right with the
    probability `chance` where those before it are. `rate` is what `chance` is learned by, None where it is
    certain."""

    drafter: Drafter
    choice: ChoiceState
    tokens: list[int]
    chance: float
    rate: OwnRate | None = None
    count: int = 0


class DraftBudget(Struct, frozen=True):
    """The step that drafts are for: it computes `tokens` of `sequences` without them, has room for `room`
    more, and costs what `costs` say. `found` are the drafts of drafters that were asked before, by
    sequence id."""

    sequences: int
    tokens: int
    room: int
    costs: StepCosts
    found: Mapping[int, Draft]


class Drafter(Protocol):
    """Proposes drafts and learns from what became of them. For the loop's thread alone."""

    gain: DrafterGain | None
    """Whether it pays; None where asking costs nothing and its drafts are certain."""

    def propose(self, choices: Sequence[ChoiceState], budget: DraftBudget) -> list[Draft]:
        """At most one draft for each choice; of a choice that has one in `budget.found`, one that is
        better."""
        ...

    def accept(self, draft: Draft, right: int, wrong: int) -> None:
        """Of a draft's tokens `right` came, then `wrong` (0 or 1) did not. With `count` 0 it was not
        verified."""
        ...

    def forget(self, choice: ChoiceState) -> None:
        """The choice has ended."""
        ...

    def close(self) -> None:
        """The loop has ended: release memory."""
        ...
