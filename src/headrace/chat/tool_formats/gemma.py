"""FunctionGemma and Gemma 4: `call:NAME{key:value}` with special quotes around strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tool_formats.values import quoted_by, read_members
from headrace.chat.tools import Tool


class MarkedStrings(Struct, frozen=True):
    """`call:`, the name, and arguments in braces; `quote` is on both sides of a string."""

    quote: str

    @property
    def marks(self) -> tuple[str, ...]:
        """The quote may be a special token."""
        return (self.quote,)

    @property
    def by_argument(self) -> bool:
        """Braces hold one value after the other."""
        return True

    def beginning(self, tool: Tool) -> str:
        """Up to the end of the name."""
        return f"call:{tool.name}"

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse a call."""
        yield from reader.space()
        yield from reader.expect("call:")
        name = yield from reader.word("{")
        yield from reader.space()
        yield from reader.expect("{")
        if name not in output.tools:
            raise Malformed
        output.start(name)
        yield from read_members(reader, output.arguments, quoted_by(self.quote), "}")
        output.end()

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """A call with arguments that match `schema`, with types enforced at every level."""
        return f"{lark.text(before + self.beginning(tool))} {self._object(lark, schema)}"

    def _value(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        kind = schema.get("type")
        if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
            quoted = (lark.text(self.quote + value + self.quote) for value in schema["enum"])
            return lark.any_of(quoted)
        if kind == "string":
            return lark.rule(f"{lark.text(self.quote)} {lark.up_to(self.quote)}")
        if kind == "array":
            item = self._value(lark, schema.get("items") or {})
            return lark.rule(f'"[" ({item} ("," {item})*)? "]"')
        if kind == "object":
            return self._object(lark, schema)
        if kind in ("integer", "number", "boolean", "null"):
            return lark.json(schema)
        return self._any(lark)

    def _object(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        tool = Tool("", "", schema)
        if "properties" not in schema:
            return self._any_object(lark)
        members = {
            key: lark.rule(f"{lark.text(key + ':')} {self._value(lark, entry)}")
            for key, entry in tool.properties.items()
        }
        required = [rule for key, rule in members.items() if key in tool.required]
        optional = [rule for key, rule in members.items() if key not in tool.required]
        return lark.rule(f'"{{" {lark.members(required, optional, ",")} "}}"')

    def _any(self, lark: Lark) -> str:
        """Any value."""
        quoted = lark.rule(f"{lark.text(self.quote)} {lark.up_to(self.quote)}")
        lark.rule('"[" (any_value ("," any_value)*)? "]"', name="any_array")
        self._any_object(lark)
        number = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?/"
        return lark.rule(
            f'{quoted} | any_array | any_object | "true" | "false" | "null" | {number}', name="any_value"
        )

    def _any_object(self, lark: Lark) -> str:
        if lark.has("any_object"):
            return "any_object"
        lark.rule('"{" (any_member ("," any_member)*)? "}"', name="any_object")
        lark.rule('/[A-Za-z0-9_-]{1,64}/ ":" any_value', name="any_member")
        self._any(lark)
        return "any_object"


FUNCTION_GEMMA = ToolFormat(
    name="functiongemma",
    call=MarkedStrings("<escape>"),
    opens=("<start_function_call>",),
    close="<end_function_call>",
    template_marks=("<start_function_call>",),
)

GEMMA4 = ToolFormat(
    name="gemma4",
    call=MarkedStrings('<|"|>'),
    opens=("<|tool_call>",),
    close="<tool_call|>",
    template_marks=("<|tool_call>call:",),
)
