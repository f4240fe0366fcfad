"""Reasoning markers of models, detected from their chat templates."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Reader, Steps


class ReasoningMarkers(Struct, frozen=True):
    """Reasoning is between `start` and `end`, before the answer; `wrap` surrounds the answer itself.

    A template may write `start` at the end of the prompt; then the output begins within the reasoning.
    """

    start: str
    end: str
    wrap: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers that may be special tokens."""
        return (self.start, self.end, *self.wrap)

    def opened_by(self, prompt: str) -> bool:
        """True if the prompt ends within the reasoning."""
        return prompt.rstrip().endswith(self.start)

    def read(
        self,
        reader: Reader,
        output: OutputEvents,
        answer: Callable[[Reader, OutputEvents], Steps[None]],
        *,
        starts_in_reasoning: bool,
    ) -> Steps[None]:
        """Parse reasoning followed by an answer; `answer` parses the rest."""
        yield from reader.space()
        if starts_in_reasoning or (yield from reader.literal(self.start)):
            output.thinking = True
            yield from reader.space()
            yield from reader.literal(self.start)  # some models repeat the marker
            yield from reader.until((self.end,), output.reasoning)
            output.thinking = False
            output.section()
        yield from answer(reader, output)

    def grammar(self, lark: Lark, answer: str, *, starts_in_reasoning: bool) -> str:
        """A grammar expression for `answer` with unconstrained reasoning before it."""
        thought = f"{lark.up_to(self.end)} /[ \\n]{{0,8}}/"
        return (
            f"{thought} {answer}" if starts_in_reasoning else f"({lark.text(self.start)} {thought})? {answer}"
        )


_KNOWN = (
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ReasoningMarkers("<|channel>thought", "<channel|>"),
    ReasoningMarkers("<seed:think>", "</seed:think>"),
    ReasoningMarkers("<think>", "</think>", ("<response>", "</response>")),
    ReasoningMarkers("<think>", "</think>"),
)


def reasoning_of(template_source: str) -> ReasoningMarkers | None:
    """The markers that a template contains; None if it has none."""
    for marks in _KNOWN:
        needed = (marks.end, *marks.wrap[:1])
        if all(mark in template_source for mark in needed):
            return marks
    return None
