"""An answer as it arrives: taken apart into text, reasoning and calls."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.chat.messages import ToolCall
from headrace.chat.reasoning import ReasoningMarkers, reasoning_of
from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    OutputEvents,
    Reasoning,
    Text,
)
from headrace.chat.tool_formats.format import openai_id
from headrace.chat.tool_formats.gpt_oss import ANALYSIS, Harmony
from headrace.chat.tool_formats.lark import Lark, SpecialId
from headrace.chat.tool_formats.reader import Reader, Steps
from headrace.chat.tool_formats.registry import FAMILIES, Family, tool_format_of
from headrace.chat.tools import ToolUse
from headrace.errors import InvalidRequest


class OutputSyntax(Struct, frozen=True):
    """How a model writes answers. With harmony the family says it all, otherwise `reasoning` comes first."""

    family: Family | None
    reasoning: ReasoningMarkers | None

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark that may be a special token."""
        return (
            *(self.family.marks if self.family else ()),
            *(self.reasoning.marks if self.reasoning else ()),
        )

    @property
    def thinking(self) -> ReasoningMarkers | None:
        """What stands around reasoning, in harmony too; None for a model that does not reason."""
        return ReasoningMarkers(*ANALYSIS) if isinstance(self.family, Harmony) else self.reasoning


def output_syntax(template_source: str, family: str | None = None) -> OutputSyntax:
    """The syntax that a chat template teaches; `family` names another for calls."""
    if family is not None and family not in FAMILIES:
        raise InvalidRequest(
            f"there is no tool format {family!r:.60}: choose one of {', '.join(FAMILIES)}",
            param="tool_format",
        )
    found = FAMILIES[family] if family is not None else tool_format_of(template_source)
    return OutputSyntax(found, None if isinstance(found, Harmony) else reasoning_of(template_source))


class OutputParser:
    """Takes one answer apart. What the events say together does not depend on how the text was cut.

    A call counts only where it is complete and of a tool that may be called; what looks like one and is none
    comes back as text, marks and all. Where a call had begun to be shown, CallFailed goes before that text.
    """

    def __init__(
        self, syntax: OutputSyntax, use: ToolUse | None, *, starts_in_reasoning: bool = False
    ) -> None:
        """`starts_in_reasoning`: the prompt ends within the reasoning."""
        self._reader = Reader()
        new_id = syntax.family.new_id if syntax.family else openai_id
        tools, parallel = (use.callable, use.parallel) if use else ((), True)
        self._output = OutputEvents(tools, new_id, parallel=parallel)
        self._steps = _answer(syntax, use, self._reader, self._output, starts_in_reasoning)
        self._output.thinking = starts_in_reasoning
        next(self._steps, None)

    @property
    def thinking(self) -> bool:
        """Whether what comes next belongs to the reasoning."""
        return self._output.thinking

    def feed(self, text: str) -> list[AnswerEvent]:
        """More text; what it makes certain."""
        self._reader.feed(text)
        next(self._steps, None)
        return self._output.take()

    def finish(self, *, cut: bool) -> list[AnswerEvent]:
        """The text is at its end. `cut` says that it was cut short: then a call under way stays as it is."""
        self._output.cut = cut
        self._reader.ended = True
        next(self._steps, None)
        self._output.finish()
        return self._output.take()


class ParsedOutput:
    """What the events of one choice have said so far. Calls that failed are none of it."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[CallStart, list[str]]] = {}
        self._complete: set[int] = set()

    def take(self, events: Sequence[AnswerEvent]) -> None:
        """More events."""
        for event in events:
            match event:
                case Text(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart(index):
                    self._calls[index] = event, []
                case Arguments(index, text):
                    self._calls[index][1].append(text)
                case CallEnd(index):
                    self._complete.add(index)
                case CallFailed(index):
                    del self._calls[index]

    @property
    def content(self) -> str:
        """Text for the user."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """Text of the reasoning."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls; the last one may be cut short."""
        return tuple(ToolCall(start.id, start.name, "".join(parts)) for start, parts in self._calls.values())

    def reason(self, reason: str) -> str:
        """Why the choice ended: for its calls, where it ended by itself and made some."""
        return "tool_calls" if reason == "stop" and self._complete else reason


def _answer(
    syntax: OutputSyntax, use: ToolUse | None, reader: Reader, output: OutputEvents, starts_in_reasoning: bool
) -> Steps[None]:
    def rest(reader: Reader, output: OutputEvents) -> Steps[None]:
        wrap = syntax.reasoning.wrap if syntax.reasoning else ()
        if wrap:
            yield from reader.space()
            yield from reader.literal(wrap[0])
        if syntax.family is not None and (use is not None or isinstance(syntax.family, Harmony)):
            yield from syntax.family.read(reader, output)
        while (yield from reader.until(wrap[1:], output.text)):
            pass

    if syntax.reasoning is not None:
        yield from syntax.reasoning.read(reader, output, rest, starts_in_reasoning=starts_in_reasoning)
    else:
        yield from rest(reader, output)


def output_grammar(
    syntax: OutputSyntax, use: ToolUse, special_id: SpecialId, *, starts_in_reasoning: bool
) -> str | None:
    """A grammar for answers in which `use` is kept; None where calls are free (no tool is strict and none has
    to be called). Raises InvalidRequest where strict tools cannot be kept."""
    family = syntax.family
    assert family is not None
    lark = Lark(special_id, syntax.marks)
    if use.mode == "required":
        answer: str | None = family.grammar(lark, use)
    elif any(tool.strict for tool in use.callable):
        answer = family.lazy_grammar(lark, use)
    else:
        return None
    if answer is None:
        return None
    if syntax.reasoning is not None:
        answer = syntax.reasoning.grammar(lark, answer, starts_in_reasoning=starts_in_reasoning)
    return lark.grammar(answer)
