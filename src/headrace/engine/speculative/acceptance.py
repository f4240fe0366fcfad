"""How often drafted tokens are right, learned for each kind of draft and for each text."""

from __future__ import annotations

FORGETTING = 0.98  # per checked draft, of a kind
OWN_FORGETTING = 0.9  # of a text
PRIOR_WEIGHT = 4.0  # checked tokens that the common rate counts for in a text of its own


class Rate:
    """The share of checked tokens that were right; old ones are forgotten. Starts at `prior`."""

    __slots__ = ("_checked", "_right")

    def __init__(self, prior: float, weight: float = PRIOR_WEIGHT) -> None:
        self._checked, self._right = weight, prior * weight

    @property
    def value(self) -> float:
        return self._right / self._checked

    def note(self, right: int, wrong: int) -> None:
        """So many were right, and so many (0 or 1 of a single draft) then were not."""
        self._checked = self._checked * FORGETTING + right + wrong
        self._right = self._right * FORGETTING + right


class OwnRate:
    """The rate of one text in one kind of draft: the common one until the text shows another."""

    __slots__ = ("_checked", "_common", "_right")

    def __init__(self, common: Rate) -> None:
        self._common = common
        self._checked = self._right = 0.0

    @property
    def value(self) -> float:
        common = self._common.value
        return (self._right + PRIOR_WEIGHT * common) / (self._checked + PRIOR_WEIGHT)

    def note(self, right: int, wrong: int) -> None:
        """As Rate.note, for the kind too."""
        self._checked = self._checked * OWN_FORGETTING + right + wrong
        self._right = self._right * OWN_FORGETTING + right
        self._common.note(right, wrong)
