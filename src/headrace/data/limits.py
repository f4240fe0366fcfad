"""What a statement may take of models: rows, tokens, seconds, money."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.data.operator import RowCost
from headrace.errors import InvalidRequest


class SqlLimit(InvalidRequest):
    """A statement takes more time, memory, rows, bytes, tokens or money than it may."""

    remedy = "Ask for less, or raise the limit in `[sql]`."
    code = "sql_limit"


class AiLimits(Struct, frozen=True, kw_only=True):
    """The most that a statement may take. `rows` are those that are computed: different, and not known yet.
    `names` are the settings or parameters that say so."""

    rows: int
    tokens: int
    seconds: float
    names: tuple[str, str] = ("sql.ai_rows", "sql.ai_tokens")


class AiBudget:
    """Counts against the limits. What would exceed one is refused before it is computed."""

    def __init__(self, limits: AiLimits) -> None:
        self._limits = limits
        self.rows, self.tokens, self._seconds = 0, 0, 0.0

    def take(self, function: str, costs: Sequence[RowCost]) -> None:
        """Set aside what rows take at most; SqlLimit where that is too much."""
        limits = self._limits
        rows = self.rows + len(costs)
        prompt, output = sum(one.prompt_tokens for one in costs), sum(one.max_output for one in costs)
        tokens = self.tokens + prompt + output
        if rows > limits.rows:
            raise SqlLimit(
                f"{function}() has {len(costs):,} different rows to compute, {rows:,} together with others,"
                f" {limits.names[0]} allows {limits.rows:,}: select fewer rows, or raise it",
                param="sql",
            )
        if tokens > limits.tokens:
            raise SqlLimit(
                f"{function}() has {prompt:,} prompt tokens and up to {output:,} of output in {len(costs):,}"
                f" rows, {tokens:,} together with others, {limits.names[1]} allows {limits.tokens:,}: select"
                " fewer rows, lower max_tokens, or raise it",
                param="sql",
            )
        self.rows, self.tokens = rows, tokens

    @property
    def seconds_left(self) -> float:
        """Of the time in which models compute."""
        return max(0.0, self._limits.seconds - self._seconds)

    def spend_seconds(self, seconds: float) -> None:
        """Models have computed for so long."""
        self._seconds += seconds

    def out_of_time(self) -> SqlLimit:
        """The error at the end of the time."""
        return SqlLimit(
            f"models compute longer than sql.ai_seconds allows, {self._limits.seconds:g} s: what they have"
            " computed is kept, so send the statement again, or raise it",
            param="sql",
        )
