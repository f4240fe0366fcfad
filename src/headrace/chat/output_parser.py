"""Streaming parser of model output: splits it into text, reasoning and tool calls."""

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
from headrace.grammar.json_schema import schema_warnings


class OutputSyntax(Struct, frozen=True):
    """How a model formats its output: `family` alone describes harmony; else `reasoning` comes first."""

    family: Family | None
    reasoning: ReasoningMarkers | None

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers that may be special tokens."""
        return (
            *(self.family.marks if self.family else ()),
            *(self.reasoning.marks if self.reasoning else ()),
        )

    @property
    def thinking(self) -> ReasoningMarkers | None:
        """The markers around reasoning, also for harmony; None for a model without reasoning."""
        return ReasoningMarkers(*ANALYSIS) if isinstance(self.family, Harmony) else self.reasoning


def output_syntax(template_source: str, family: str | None = None) -> OutputSyntax:
    """The syntax that a chat template uses; `family` overrides the tool call format."""
    if family is not None and family not in FAMILIES:
        raise InvalidRequest(
            f"there is no tool format {family!r:.60}: choose one of {', '.join(FAMILIES)}",
            param="tool_format",
        )
    found = FAMILIES[family] if family is not None else tool_format_of(template_source)
    return OutputSyntax(found, None if isinstance(found, Harmony) else reasoning_of(template_source))


class OutputParser:
    """Parses one choice's output. The concatenated events do not depend on how the text was split.

    A tool call counts only if it is complete and names a callable tool; anything else is returned as text,
    including markers. If part of a call was already emitted, CallFailed precedes that text.
    """

    def __init__(
        self,
        syntax: OutputSyntax,
        use: ToolUse | None,
        *,
        starts_in_reasoning: bool = False,
        origin: str = "",
    ) -> None:
        """`starts_in_reasoning`: the prompt ends within the reasoning. Ids of calls are made of `origin`, or
        random."""
        self._reader = Reader()
        new_id = syntax.family.new_id if syntax.family else openai_id
        tools, parallel = (use.callable, use.parallel) if use else ((), True)
        self._output = OutputEvents(tools, new_id, origin, parallel=parallel)
        self._steps = _answer(syntax, use, self._reader, self._output, starts_in_reasoning)
        self._output.thinking = starts_in_reasoning
        next(self._steps, None)

    @property
    def thinking(self) -> bool:
        """True if the next text belongs to the reasoning."""
        return self._output.thinking

    def feed(self, text: str) -> list[AnswerEvent]:
        """Parse more text; returns the events that are now certain."""
        self._reader.feed(text)
        next(self._steps, None)
        return self._output.take()

    def finish(self, *, cut: bool) -> list[AnswerEvent]:
        """End of text. `cut`: generation was cut off, so an incomplete call is kept as it is."""
        self._output.cut = cut
        self._reader.ended = True
        next(self._steps, None)
        self._output.finish()
        return self._output.take()


class ParsedOutput:
    """Accumulates the events of one choice, without failed calls."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[CallStart, list[str]]] = {}
        self._complete: set[int] = set()

    def take(self, events: Sequence[AnswerEvent]) -> None:
        """Add events."""
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
        """The tool calls; the last one may be incomplete."""
        return tuple(ToolCall(start.id, start.name, "".join(parts)) for start, parts in self._calls.values())

    def reason(self, reason: str) -> str:
        """The finish reason: "tool_calls" instead of "stop" if there are calls."""
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


class ToolGrammar(Struct, frozen=True):
    """A grammar in llguidance's Lark, and what of the tools' schemas it does not enforce, or adds to them."""

    text: str
    warnings: tuple[str, ...] = ()


def output_grammar(
    syntax: OutputSyntax,
    use: ToolUse,
    special_id: SpecialId,
    *,
    starts_in_reasoning: bool,
    disable_additional_properties: bool = False,
) -> ToolGrammar:
    """A grammar for output that satisfies `use`: calls match the schemas of their tools from their mark on.

    A tool whose schema cannot be enforced may have any arguments; if it is strict, SchemaRefused is raised.
    """
    family = syntax.family
    assert family is not None
    lark = Lark(special_id, syntax.marks, closes=disable_additional_properties)
    answer = family.grammar(lark, use) if use.mode == "required" else family.lazy_grammar(lark, use)
    if syntax.reasoning is not None:
        answer = syntax.reasoning.grammar(lark, answer, starts_in_reasoning=starts_in_reasoning)
    return ToolGrammar(lark.grammar(answer), (*dict.fromkeys(lark.warnings), *schema_warnings(lark.schemas)))
