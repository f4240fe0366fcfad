"""What a step of so many tokens costs, learned from the steps themselves."""

from __future__ import annotations

from itertools import pairwise

# Of a step's seconds, as long as nothing is measured: what another token adds. Decoding is bound by memory,
# so it is little; too little rather than too much, because what seems not to pay is never measured.
PRIOR_SHARE = 0.03
# Weight of the newest measurement. What disturbs a step makes it slower, never faster.
SLOWER_WEIGHT, FASTER_WEIGHT = 0.1, 0.4
MOST_SLOWER = 2.0  # times what was expected: so much at most does one measurement count for
LARGEST = 64  # tokens; larger steps are bound by arithmetic and grow in proportion


class StepCosts:
    """Seconds of steps by their number of tokens, 1 to LARGEST; between measured ones straight lines.

    A step that was disturbed does not count for much, not even the first of its size; forgetting follows the
    machine, whose speed changes, and the texts, whose growing lengths make attention slower.
    """

    __slots__ = ("_curve", "_measured", "_stale")

    def __init__(self) -> None:
        self._measured: dict[int, float] = {}
        self._curve: list[float] = []
        self._stale = True

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._measured)

    def note(self, tokens: int, seconds: float) -> None:
        """A step took so long."""
        if not 1 <= tokens <= LARGEST or seconds <= 0:
            return
        if self._measured:
            expected = self._measured.get(tokens) or self.curve()[tokens]
            change = min(seconds, MOST_SLOWER * expected) - expected
            seconds = expected + change * (FASTER_WEIGHT if change < 0 else SLOWER_WEIGHT)
        self._measured[tokens] = seconds
        self._stale = True

    def curve(self) -> list[float]:
        """Seconds by number of tokens: entry n is for n tokens, entry 0 has no meaning."""
        if self._stale:
            self._curve, self._stale = self._drawn(), False
        return self._curve

    def _drawn(self) -> list[float]:
        known = sorted(self._measured.items())
        first, seconds = known[0]
        curve = [seconds] * (first + 1)
        for (left, low), (right, high) in pairwise(known):
            high = max(high, low, curve[-1])  # more tokens do not take less: that is noise
            low = curve[-1]
            curve += [low + (high - low) * (n - left) / (right - left) for n in range(left + 1, right + 1)]
        slope = max(PRIOR_SHARE * seconds, _slope(curve, first))
        return curve + [curve[-1] + slope * (n + 1) for n in range(LARGEST - len(curve) + 1)]


def _slope(curve: list[float], first: int) -> float:
    """Seconds that a token adds, over all that is measured."""
    return (curve[-1] - curve[first]) / max(len(curve) - 1 - first, 1)
