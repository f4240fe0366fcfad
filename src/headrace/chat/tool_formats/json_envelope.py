"""A call as a JSON object with a name and arguments, which most families use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tool_formats.values import json_text, read_arguments, read_text, read_value
from headrace.chat.tools import Tool

_ARGUMENT_KEYS = ("arguments", "parameters")
_IGNORED_KEYS = ("id", "type")


class JsonEnvelope(Struct, frozen=True):
    """`{"name": …, <arguments_key>: {…}}`; the parser accepts the keys in any order."""

    arguments_key: str = "arguments"
    marks: tuple[str, ...] = ()
    by_argument: bool = False

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse the object. Arguments before the name are buffered."""
        name: str | None = None
        held: list[str] | None = None
        yield from reader.space()
        yield from reader.expect("{")
        while True:
            key = yield from read_text(reader)
            yield from reader.space()
            yield from reader.expect(":")
            if key == "name" and name is None:
                name = yield from read_text(reader)
                if name not in output.tools:
                    raise Malformed
                if held is not None:
                    output.start(name)
                    output.arguments("".join(held))
            elif key in _ARGUMENT_KEYS and held is None:
                held = []
                if name is not None:
                    output.start(name)
                yield from read_arguments(reader, held.append if name is None else output.arguments)
            elif key in _IGNORED_KEYS:
                yield from read_value(reader, _ignore)
            else:
                raise Malformed
            yield from reader.space()
            if (yield from reader.expect(",", "}")) == "}":
                break
        if name is None:
            raise Malformed
        if held is None:
            output.start(name)
            output.arguments("{}")
        output.end()

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """The object, with keys in the order that templates write."""
        opening = f'{before}{self.beginning(tool)}, "{self.arguments_key}": '
        return f"{lark.text(opening)} {lark.json(schema)} {lark.text('}')}"

    def beginning(self, tool: Tool) -> str:
        """Up to the end of the name."""
        return f'{{"name": {json_text(tool.name)}'


def _ignore(text: str) -> None:
    pass
