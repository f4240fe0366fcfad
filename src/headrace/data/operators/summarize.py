"""`summarize(col)`: a summary of all texts of a group."""

from __future__ import annotations

from headrace.data.operators.ai_agg import AiAgg


class Summarize(AiAgg):
    """As `ai_agg` with an instruction of its own."""

    usage = "summarize(column)"

    def instruction(self) -> str:
        """See `AiAgg.instruction`."""
        return "Summarize the following in a few sentences."


OPERATOR = Summarize
