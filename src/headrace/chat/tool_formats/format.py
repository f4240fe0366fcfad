"""Description of a family's tool calls: the markers around calls, and the syntax of one call."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tools import Tool, ToolUse

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class CallSyntax(Protocol):
    """Syntax of one call: its name and arguments."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers inside a call that may be special tokens."""
        ...

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse one call of a callable tool; raises Malformed for anything else."""
        ...

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any]) -> str:
        """A grammar expression for a call of `tool` with arguments matching `schema`."""
        ...


def openai_id() -> str:
    """A new call id in OpenAI's format."""
    return "call_" + secrets.token_hex(12)


def short_id() -> str:
    """Nine letters and digits, the only format that Mistral's templates accept."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class ToolFormat(Struct, frozen=True, kw_only=True):
    """A model family's format: sections of calls within free text.

    A section consists of one of `opens`, `lead`, the calls, each between `begin` and `end`, then `tail` and
    `close`. It has one call, unless `begin` or `separator` shows where another begins. Strings are as the
    grammar writes them; the parser accepts any white space at their start and end, and missing closing
    markers. With `bare`, an answer may also begin with calls without a marker. A chat template that
    contains all of `template_marks` uses this format.
    """

    name: str
    call: CallSyntax
    opens: tuple[str, ...]
    template_marks: tuple[str, ...]
    lead: str = ""
    begin: str = ""
    end: str = ""
    separator: str = ""
    tail: str = ""
    close: str = ""
    gap: str = ""
    bare: bool = False
    new_id: Callable[[], str] = openai_id

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers that may be special tokens."""
        texts = (*self.opens, self.begin, self.end, self.close, *self.call.marks)
        return tuple(text.strip() for text in texts if text.strip())

    @property
    def _many(self) -> bool:
        return bool(self.begin or self.separator)

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse the rest of an answer: text with sections. Malformed sections are text."""
        opens = tuple(text.strip() for text in self.opens)
        if self.bare:
            yield from reader.space()
            reader.record()
            if (yield from reader.peek()) in ("{", "["):
                yield from self._section_or_text(reader, output)
        while (yield from reader.until(opens, output.text, record=True)):
            yield from self._section_or_text(reader, output)

    def _section_or_text(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        try:
            yield from self._section(reader, output)
        except Malformed:
            output.fail(reader.recorded())

    def _section(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        begin, end, separator = self.begin.strip(), self.end.strip(), self.separator.strip()
        for part in (self.lead.strip(), begin):
            if part:
                yield from reader.space()
                yield from reader.expect(part)
        while True:
            yield from self.call.read(reader, output)
            yield from reader.space()
            if end:
                yield from reader.literal(end)
                yield from reader.space()
            reader.record()
            again = (yield from reader.literal(separator, begin)) if self._many else ""
            if not again:
                break
            if begin and again != begin:
                yield from reader.space()
                yield from reader.expect(begin)
        for part in (self.tail.strip(), self.close.strip()):
            if part and (yield from reader.followed_by(part)):
                yield from reader.space()
                yield from reader.literal(part)

    def grammar(self, lark: Lark, use: ToolUse) -> str:
        """A grammar expression for an answer that consists of calls only, at least one."""
        schemas = {tool.name: tool.parameters for tool in use.callable}
        calls = self._calls(lark, use.callable, schemas, use.parallel)
        section = lark.rule(f"{lark.text(self.opens[0])} {calls}") if not self.bare else calls
        if self._many or not use.parallel:
            return section
        return f"{section} ({lark.text(self.gap)} {section})*"

    def lazy_grammar(self, lark: Lark, use: ToolUse) -> str | None:
        """A grammar expression for free text in which calls, once begun, match their tools; None if calls
        begin without a marker and so cannot be distinguished from text.
        """
        if self.bare:
            return None
        schemas = {tool.name: tool.parameters if tool.strict else ANY_OBJECT for tool in use.callable}
        mark = self.opens[0].strip()
        rest = self.opens[0].lstrip()[len(mark) :]
        calls = self._calls(lark, use.callable, schemas, use.parallel)
        section = f"{lark.up_to(mark)} {lark.text(rest)} {calls}"
        times = "*" if use.parallel else "?"
        return f"({section}){times} {lark.free()}"

    def _calls(
        self, lark: Lark, tools: Sequence[Tool], schemas: Mapping[str, Mapping[str, Any]], parallel: bool
    ) -> str:
        begin, end = lark.text(self.begin), lark.text(self.end)
        one = lark.any_of(self.call.grammar(lark, tool, schemas[tool.name]) for tool in tools)
        call = lark.rule(f"{begin} {one} {end}")
        more = f"({lark.text(self.separator)} {call})*" if self._many and parallel else ""
        last = lark.text(self.tail + ("" if self.bare else self.close))
        return lark.rule(f"{lark.text(self.lead)} {call} {more} {last}")
