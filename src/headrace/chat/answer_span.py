"""Locate the answer in a model's raw text, without a full output parser."""

from __future__ import annotations

from msgspec import Struct


class AnswerSpan(Struct, frozen=True):
    """The answer follows the last `after`, inside `wrap` if the text contains it.

    Without `after` the whole text is the answer, unless reasoning has begun: either the prompt
    `starts_in_reasoning`, or the text starts with `start`.
    """

    after: str
    start: str = ""
    starts_in_reasoning: bool = False
    wrap: tuple[str, ...] = ()

    def find(self, text: str) -> str | None:
        """The answer in `text`; None if the reasoning has not ended."""
        _, mark, answer = text.rpartition(self.after)
        if not mark and (self.starts_in_reasoning or (self.start and text.lstrip().startswith(self.start))):
            return None
        if self.wrap:
            answer = answer.strip().removeprefix(self.wrap[0]).removesuffix(self.wrap[1])
        return answer
