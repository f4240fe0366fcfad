"""Where in a model's text its answer stands, for those who do not read it as a conversation."""

from __future__ import annotations

from msgspec import Struct


class AnswerSpan(Struct, frozen=True):
    """The answer comes after the last `after`, within `wrap` where that is written.

    Without `after` all is answer, unless reasoning had begun: the prompt `starts_in_reasoning` it or the
    text starts with `start`.
    """

    after: str
    start: str = ""
    starts_in_reasoning: bool = False
    wrap: tuple[str, ...] = ()

    def find(self, text: str) -> str | None:
        """The answer in `text`; None where the reasoning has not ended."""
        _, mark, answer = text.rpartition(self.after)
        if not mark and (self.starts_in_reasoning or (self.start and text.lstrip().startswith(self.start))):
            return None
        if self.wrap:
            answer = answer.strip().removeprefix(self.wrap[0]).removesuffix(self.wrap[1])
        return answer
