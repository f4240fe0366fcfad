"""How long a step takes by what it computes, fitted to the last steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

WINDOW = 32  # steps of each kind that are remembered
REFIT_EVERY = 8  # steps
ENOUGH = 2  # steps with prefill
LOOP_S = 1e-4
REACHED = 0.6
"""Guesses until steps are measured: the loop around one, and how much of the machine's limits it reaches."""
# What makes the columns of the fit about equally large.
_SCALES = np.array([1.0, 512.0, 32.0, 2.0**18])


class StepWork(Struct, frozen=True):
    """What a step computes: `prefill` tokens of prompts, `rows` that generate, and `pairs` of a token and one
    that it attends to (the tokens of KV that are read, for rows that generate). Of the mean of many steps
    these are no whole numbers."""

    prefill: float
    rows: float
    pairs: float


class StepBound(Struct, frozen=True):
    """What steps take before one was measured: `read_s` to read the weights and `token_s` to compute a token,
    at the limits of the machine; 0 where these are not known."""

    read_s: float = 0.0
    token_s: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Of a step; 0 where nothing is known."""
        at_best_s = max(self.read_s, self.token_s * (work.prefill + work.rows))
        return LOOP_S + at_best_s / REACHED if at_best_s else 0.0


class StepTimes:
    """Seconds of a step = a + b * prefill + c * rows + d * pairs, none of them negative.

    Least squares of relative errors over the last WINDOW steps with prefill and as many without: a step that
    was disturbed counts for little, and what was not seen for a while is not forgotten. The costs of single
    tokens beside each other, which are no line, are StepCosts' (speculative/step_cost_model.py).
    """

    __slots__ = ("_fit", "_kinds", "_unfitted")

    def __init__(self) -> None:
        self._kinds: tuple[deque[tuple[StepWork, float]], ...] = deque(maxlen=WINDOW), deque(maxlen=WINDOW)
        self._fit = (0.0, 0.0, 0.0, 0.0)
        self._unfitted = 0  # steps that the fit has not seen

    def copy(self) -> StepTimes:
        """Another with the same samples."""
        made = StepTimes()
        for own, samples in zip(made._kinds, self._kinds, strict=True):
            own.extend(samples)
        made._unfitted = sum(map(len, self._kinds))
        return made

    @property
    def known(self) -> bool:
        """Whether enough prefill was measured."""
        return len(self._kinds[1]) >= ENOUGH

    @property
    def any_known(self) -> bool:
        """Whether any step was measured."""
        return any(self._kinds)

    @property
    def fitted(self) -> tuple[float, float, float, float] | None:
        """a, b, c, d as of the last fit, None before steps of both kinds were measured. From any thread."""
        return self._fit if min(map(len, self._kinds)) >= ENOUGH and any(self._fit) else None

    def knows(self, work: StepWork) -> bool:
        """Whether a step like this one, with prefill or without, was measured."""
        return bool(self._kinds[work.prefill > 0])

    def note(self, work: StepWork, seconds: float) -> None:
        """A step took so long."""
        if seconds > 0:
            self._kinds[work.prefill > 0].append((work, seconds))
            self._unfitted += 1

    def seconds(self, work: StepWork) -> float:
        """Of a step; 0 where nothing is known."""
        a, b, c, d = self._coefficients()
        return a + b * work.prefill + c * work.rows + d * work.pairs

    def row_seconds(self, context: float) -> float:
        """What one more token adds to a step, which attends to so many others. Among many rows tokens of
        prompts and of answers cost alike: where steps of several rows were not seen, prompts say it."""
        _, b, c, d = self._coefficients()
        return max(b, c) + d * context

    def prefill_tokens(self, limit_s: float, rest: StepWork, start: int, most: int) -> int:
        """How many tokens of a prompt, from its token `start` on and at most `most`, a step has time for that
        computes the `rest` too."""
        _, b, _, d = self._coefficients()
        left_s = limit_s - self.seconds(rest)
        # Attention of n tokens reads n * start + n * n / 2 pairs: a root without cancellation.
        linear, square = b + d * start, d / 2
        if left_s <= 0:
            return 0
        discriminant = linear * linear + 4 * square * left_s
        denominator = linear + float(np.sqrt(discriminant))
        return most if denominator * most <= 2 * left_s else int(2 * left_s / denominator)

    def _coefficients(self) -> tuple[float, float, float, float]:
        if self._unfitted and (self._unfitted >= REFIT_EVERY or not any(self._fit)):
            self._fit, self._unfitted = self._fitted(), 0
        return self._fit

    def _fitted(self) -> tuple[float, float, float, float]:
        return fitted_step_times([sample for kind in self._kinds for sample in kind])


class WidthTimes:
    """StepTimes of each number of threads that steps have had. Of a new one they begin with the samples of
    the one before."""

    __slots__ = ("_widths", "now")

    def __init__(self, now: StepTimes | None = None) -> None:
        self.now = now or StepTimes()
        self._widths = {0: self.now}

    def use(self, width: int) -> None:
        """The next step has so many threads; 0: all."""
        known = self._widths.get(width)
        if known is None:
            known = self._widths[width] = self.now.copy()
        self.now = known

    def shortest_s(self, work: StepWork) -> float:
        """Seconds of a step with the best number of threads; infinite where nothing is known."""
        known = [times for times in self._widths.values() if times.any_known]
        return min((times.seconds(work) for times in known), default=float("inf"))


def fitted_step_times(samples: Sequence[tuple[StepWork, float]]) -> tuple[float, float, float, float]:
    """a, b, c, d (see StepTimes) by least squares of relative errors, none of them negative."""
    seconds = np.array([second for _, second in samples])
    columns = np.array([(1.0, work.prefill, work.rows, work.pairs) for work, _ in samples]) / _SCALES
    relative = columns / seconds[:, None]
    used = list(range(4))
    while True:
        found = np.linalg.lstsq(relative[:, used], np.ones(len(samples)), rcond=None)[0]
        if len(used) == 1 or found.min() >= 0:
            break
        del used[int(found.argmin())]
    fit = np.zeros(4)
    fit[used] = found
    a, b, c, d = (fit / _SCALES).tolist()
    return a, b, c, d


def attended(start: int, count: int) -> float:
    """Pairs of `count` tokens from token `start` on, each with those before it and itself."""
    return count * (start + (count + 1) / 2)
