"""Costs of steps for tests in which what is drafted must not depend on a clock."""

from __future__ import annotations

from headrace.engine.speculative.step_cost_model import LARGEST, StepCosts


class FreeTokens(StepCosts):
    """Every token more costs nothing, so that everything that can be drafted is."""

    known = True  # type: ignore[assignment]

    def curve(self) -> list[float]:
        return [1.0] * (LARGEST + 1)

    def seconds(self, tokens: int) -> float:
        return self.curve()[min(tokens, LARGEST)]
