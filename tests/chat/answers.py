"""Helpers: model output in pieces, and what a parser makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.chat.output_parser import OutputParser, OutputSyntax
from headrace.chat.tool_formats.events import Arguments, CallEnd, CallFailed, CallStart, Reasoning, Text
from headrace.chat.tools import Tool, ToolUse


@dataclass
class Read:
    """The concatenated events of an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


def read(
    syntax: OutputSyntax, use: ToolUse | None, pieces: Iterable[str], *, cut=False, starts_in_reasoning=False
) -> Read:
    parser = OutputParser(syntax, use, starts_in_reasoning=starts_in_reasoning)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish(cut=cut)
    result, calls = Read(), {}
    for event in events:
        match event:
            case Text(text):
                result.content += text
            case Reasoning(text):
                result.reasoning += text
            case CallStart(index, _, name):
                calls[index] = [name, ""]
            case Arguments(index, text):
                calls[index][1] += text
            case CallEnd(index):
                result.ends.add(index)
            case CallFailed(index):
                result.failed.add(index)
    result.calls = [tuple(call) for index, call in calls.items() if index not in result.failed]
    return result


def parsed(result: Read) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in result.calls]


def schema_of(value: Any) -> dict[str, Any]:
    """A schema with the types of a value."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(entry) for key, entry in value.items()}}
    if isinstance(value, list):
        return {"type": "array"}
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return {"type": kinds[type(value)]}


def tools_for(calls: Sequence[tuple[str, dict[str, Any]]]) -> tuple[Tool, ...]:
    """A tool for every called name, with the properties of all its calls."""
    merged: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        merged.setdefault(name, {}).update(arguments)
    return tuple(Tool(name, "", schema_of(arguments)) for name, arguments in merged.items())
