"""`ai_probability(question, col…)`: how likely yes is, among yes and no, from 0 to 1."""

from __future__ import annotations

import math

from headrace.data.operators.ai_filter import AiFilter
from headrace.data.questions import Value


class AiProbability(AiFilter):
    """As `ai_filter`, which is true above 0.5."""

    type = "DOUBLE"
    is_condition = False
    options = ()

    def value(self, margin: float) -> Value:
        """The logistic function of the margin."""
        return 1 / (1 + math.exp(-margin)) if margin > -700 else 0.0


OPERATOR = AiProbability
