"""A chart axis: range, scale, ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

LOG_FROM = 30.0  # maximum over minimum; beyond this ratio a linear axis would hide small values
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Axis(Struct, frozen=True):
    """Range from `low` to `high`, inclusive."""

    low: float
    high: float
    log: bool

    def place(self, value: float) -> float:
        """Position of a value: 0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """About five round numbers on the axis."""
        if not self.log:
            step = _step(self.high - self.low)
            return [step * index for index in range(math.floor(self.high / step + 1e-9) + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        digits = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
        values = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        return [value for value in values if self.low * 0.999 <= value <= self.high * 1.001]


def axis_of(values: Sequence[float], *, whole: bool = False) -> Axis:
    """An axis for the values: linear from 0, or logarithmic if they span a large ratio. `whole`: no
    margin above the largest value.
    """
    positive = [value for value in values if value > 0]
    high = max(positive, default=1.0)
    if positive and high / min(positive) > LOG_FROM and not whole:
        return Axis(_round_down(min(positive)), high * 1.25, log=True)
    return Axis(0.0, high if whole else high * 1.1, log=False)


def _step(span: float) -> float:
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in _STEPS if power * step >= rough * 0.999)


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(power * step for step in (1.0, 2.0, 5.0) if power * step <= value * 1.001)


def label(value: float) -> str:
    """Short text of a tick: 1,500 or 0.25."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.3g}"
