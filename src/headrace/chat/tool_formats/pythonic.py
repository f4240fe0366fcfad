"""Llama 4 and LFM 2: a list of Python calls, `[f(a=1), g()]`, with or without markers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tool_formats.values import PYTHON, json_text, read_value
from headrace.chat.tools import Tool


class PythonCall(Struct, frozen=True):
    """`f(a=1, b="x")`: keyword arguments only, values are literals."""

    marks: tuple[str, ...] = ()
    by_argument: bool = True

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse a call."""
        yield from reader.space()
        name = yield from reader.word("(")
        if name not in output.tools:
            raise Malformed
        yield from reader.expect("(")
        output.start(name)
        output.arguments("{")
        yield from reader.space()
        end = yield from reader.literal(")")
        while not end:
            yield from reader.space()
            key = yield from reader.word("=,()[]{}\"'")
            yield from reader.space()
            yield from reader.expect("=")
            if not key:
                raise Malformed
            output.arguments(f"{json_text(key)}: ")
            yield from read_value(reader, output.arguments, PYTHON)
            yield from reader.space()
            if (yield from reader.expect(",", ")")) == ")":
                break
            output.arguments(", ")
        output.arguments("}")
        output.end()

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """A call with values in JSON, which the parser accepts in addition to Python."""
        strict = Tool(tool.name, "", schema)
        members = {
            key: lark.rule(f"{lark.text(key + '=')} {lark.json(entry)}")
            for key, entry in strict.properties.items()
        }
        required = [rule for key, rule in members.items() if key in strict.required]
        optional = [rule for key, rule in members.items() if key not in strict.required]
        arguments = lark.members(required, optional, ", ")
        if "properties" not in schema:
            one = f"/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ {lark.text('=')} {lark.json({})}"
            any_one = lark.rule(one)
            arguments = f"({any_one} ({lark.text(', ')} {any_one})*)?"
        return f"{lark.text(before + self.beginning(tool))} {arguments} {lark.text(')')}"

    def beginning(self, tool: Tool) -> str:
        """Up to the bracket."""
        return f"{tool.name}("


LLAMA4 = ToolFormat(
    name="llama4_pythonic",
    call=PythonCall(),
    opens=("<|python_start|>",),
    lead="[",
    separator=", ",
    tail="]",
    close="<|python_end|>",
    bare=True,
    template_marks=("[func_name1(",),
)

LFM2 = ToolFormat(
    name="lfm2",
    call=PythonCall(),
    opens=("<|tool_call_start|>",),
    lead="[",
    separator=", ",
    tail="]",
    close="<|tool_call_end|>",
    template_marks=("List of tools: ",),
)
