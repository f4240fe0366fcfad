"""Description of a family's tool calls: the markers around calls, and the syntax of one call."""

from __future__ import annotations

import hashlib
import secrets
import string
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tools import Tool, ToolUse
from headrace.grammar.json_schema import SchemaRefused

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_OF_ALL_ARGUMENTS = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "propertyNames", "minProperties"}
    | {"maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"}
)


class CallSyntax(Protocol):
    """Syntax of one call: its name and arguments."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers inside a call that may be special tokens."""
        ...

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse one call of a callable tool; raises Malformed for anything else."""
        ...

    @property
    def by_argument(self) -> bool:
        """True if each argument has a schema of its own: what is said of all together is not enforced."""
        ...

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """A grammar expression for `before` and a call of `tool` with arguments matching `schema`."""
        ...

    def beginning(self, tool: Tool) -> str:
        """How a call of `tool` begins, up to its name and what follows that."""
        ...


def openai_id(origin: str = "") -> str:
    """A call id in OpenAI's format: that of an `origin`, or a random one."""
    return "call_" + _bits(origin).to_bytes(16, "little").hex()[:24]


def short_id(origin: str = "") -> str:
    """Nine letters and digits, the only format that Mistral's templates accept."""
    letters, rest, found = string.ascii_letters + string.digits, _bits(origin), ""
    for _ in range(9):
        rest, place = divmod(rest, len(letters))
        found += letters[place]
    return found


def _bits(origin: str) -> int:
    data = hashlib.blake2b(origin.encode(), digest_size=16).digest() if origin else secrets.token_bytes(16)
    return int.from_bytes(data, "little")


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
    new_id: Callable[[str], str] = openai_id

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
        calls = self._calls(lark, use)
        section = lark.rule(f"{lark.text(self.opens[0])} {calls}") if not self.bare else calls
        if self._many or not use.parallel:
            return section
        return f"{section} ({lark.text(self.gap)} {section})*"

    def lazy_grammar(self, lark: Lark, use: ToolUse) -> str:
        """A grammar expression for free text in which calls, once begun, match their tools.

        A call without a marker begins as the template writes it, up to its name; other text is free.
        """
        calls = self._calls(lark, use)
        if self.bare:
            return self._bare_or_text(lark, use, calls)
        sections: list[str] = []
        for opening in self.opens:
            mark = opening.strip()
            rest = opening.lstrip()[len(mark) :]
            sections.append(f"{lark.up_to(mark)} {lark.text(rest)} {calls}")
        times = "*" if use.parallel else "?"
        return f"({lark.any_of(sections)}){times} {lark.free()}"

    def _bare_or_text(self, lark: Lark, use: ToolUse, calls: str) -> str:
        beginnings = [self.lead + self.call.beginning(tool) for tool in use.callable]
        text = lark.other_than(beginnings)
        marks = [mark for mark in self.opens if lark.is_special(mark)]
        marked = lark.any_of(f"({text})? {lark.text(mark)} {calls}" for mark in marks) if marks else ""
        return lark.any_of(filter(None, (calls, marked, f"({text})?")))

    def _calls(self, lark: Lark, use: ToolUse) -> str:
        call = self._call(lark, use)
        # What tells a call without a marker from text is one lexeme, from the first character on.
        first = (
            self._call(lark, use, self.lead) if self.bare and self.lead else f"{lark.text(self.lead)} {call}"
        )
        more = f"({lark.text(self.separator)} {call})*" if self._many and use.parallel else ""
        last = lark.text(self.tail + ("" if self.bare else self.close))
        return lark.rule(f"{first} {more} {last}")

    def _call(self, lark: Lark, use: ToolUse, before: str = "") -> str:
        calls = (call_grammar(self.call, lark, tool, tool.parameters, before) for tool in use.callable)
        return lark.rule(f"{lark.text(self.begin)} {lark.any_of(calls)} {lark.text(self.end)}")


def call_grammar(
    call: CallSyntax, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = ""
) -> str:
    """A call of `tool`, with any arguments where its schema cannot be enforced.

    That is the same for every syntax. Raises SchemaRefused if the tool is strict.
    """
    try:
        lark.compiled(schema)
    except SchemaRefused as error:
        if tool.strict:
            raise
        lark.warnings.append(f"tool {tool.name!r} can have any arguments: {error.cause}")
        return call.grammar(lark, tool, ANY_OBJECT, before)
    if call.by_argument and (loose := sorted(_OF_ALL_ARGUMENTS & schema.keys())):
        lark.warnings.append(
            f"tool {tool.name!r}: {', '.join(loose)} of all arguments together cannot be enforced in the "
            "syntax of this model's calls"
        )
    mark = lark.position
    try:
        return call.grammar(lark, tool, schema, before)
    except SchemaRefused as error:  # by one argument, whose references lead out of it
        if tool.strict:
            raise
        lark.reset(mark)
        lark.warnings.append(f"tool {tool.name!r} can have any arguments: {error.cause}")
        return call.grammar(lark, tool, ANY_OBJECT, before)
