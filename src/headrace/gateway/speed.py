"""How long a target takes, by what was measured: time to the first content, and per token after it."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

SAMPLES = 64
NEAREST = 9
"""Answers to prompts of the most similar length, of which the median counts."""
ENOUGH = 3


class TargetSpeed:
    """The last answers of one target. Medians: one slow answer says little."""

    def __init__(self) -> None:
        self._first: deque[tuple[float, float]] = deque(maxlen=SAMPLES)  # log2 of prompt tokens, seconds
        self._per_token: deque[float] = deque(maxlen=SAMPLES)
        self._outputs: deque[int] = deque(maxlen=SAMPLES)
        self.samples = 0
        """Answers that were measured, also those that are no longer kept."""

    def add(self, prompt_tokens: int, output_tokens: int, first_s: float, total_s: float) -> None:
        """An answer is complete. What cannot be (a clock that went back, no tokens) is left out."""
        if not (0 <= first_s <= total_s < math.inf):
            return
        self.samples += 1
        self._first.append((math.log2(max(prompt_tokens, 1)), first_s))
        if output_tokens > 0:
            self._outputs.append(output_tokens)
        if output_tokens > 1:
            self._per_token.append((total_s - first_s) / (output_tokens - 1))

    @property
    def usual_output(self) -> int | None:
        """The median of the tokens of its answers."""
        return int(median(self._outputs)) if len(self._outputs) >= ENOUGH else None

    def seconds(self, prompt_tokens: int, output_tokens: int) -> float | None:
        """How long an answer takes; None while too little is known."""
        if len(self._first) < ENOUGH:
            return None
        size = math.log2(max(prompt_tokens, 1))
        near = sorted(self._first, key=lambda one: abs(one[0] - size))[:NEAREST]
        per_token = median(self._per_token) if self._per_token else 0.0
        return median(seconds for _, seconds in near) + per_token * max(0, output_tokens - 1)
