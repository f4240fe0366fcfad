"""A call as a name and a JSON object with markers between: DeepSeek, Kimi, newer Mistral models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tool_formats.values import read_arguments
from headrace.chat.tools import Tool


class XmlTags(Struct, frozen=True):
    """`before`, the name, `after`, the arguments, `last`. White space around the parts is free.

    `between` is a marker that may, with the text after it (the call's id), separate name and arguments.
    """

    after: str
    before: str = ""
    last: str = ""
    between: str = ""
    ordinal: bool = False
    """True if `:` and the index of the call follow the name."""
    marks: tuple[str, ...] = ()
    by_argument: bool = False

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse a call."""
        yield from reader.space()
        if self.before:
            yield from reader.expect(self.before.strip())
        header: list[str] = []
        if not (yield from reader.until((self.after.strip(),), header.append)):
            raise Malformed
        name = "".join(header)
        if self.between:
            name = name.partition(self.between)[0]
        if self.ordinal:
            name = name.rpartition(":")[0]
        if name.strip() not in output.tools:
            raise Malformed
        output.start(name.strip())
        yield from read_arguments(reader, output.arguments)
        output.end()
        if self.last:
            yield from reader.space()
            yield from reader.literal(self.last.strip())

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """A call with the text that the template writes around its parts."""
        ordinal = r" /:[0-9]{1,3}/" if self.ordinal else ""
        name = lark.text(before + self.beginning(tool)) + ordinal
        return f"{name} {lark.text(self.after)} {lark.json(schema)} {lark.text(self.last)}"

    def beginning(self, tool: Tool) -> str:
        """Up to the end of the name."""
        return self.before + tool.name
