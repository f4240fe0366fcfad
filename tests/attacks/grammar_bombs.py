"""Small constraints that take hours or gigabytes to compile or to follow, as bodies of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

MESSAGES = [{"role": "user", "content": "hello"}]


def _powers(depth: int) -> Json:
    """Definitions of which each holds the one before twice."""
    definitions: Json = {"d0": {"type": "string", "pattern": "(a|b)*a(a|b){12}"}}
    for level in range(1, depth):
        inner = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"allOf": [inner, {"anyOf": [inner, {"type": "string"}]}]}
    return {"$defs": definitions, "$ref": f"#/$defs/d{depth - 1}"}


def optional_properties(count: int) -> Json:
    """An object of which every property may be left out."""
    properties = {f"p{index * 7919 % 100003:x}": {"type": "string"} for index in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


SCHEMAS: dict[str, Json] = {
    "a remainder of 99,999,989 states": {"type": "integer", "multipleOf": 99999989},
    "several remainders": {
        "anyOf": [{"type": "integer", "multipleOf": prime} for prime in (7919, 7907, 7901, 7883)]
    },
    "20 patterns at once": {
        "allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{length}}}"} for length in range(20)]
    },
    "patterns and their products": _powers(24),
    "a reference to itself": {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}]},
    "4,000 optional properties": optional_properties(4000),
}
"""Compiling each takes far longer than a second, or is refused at once."""

PATTERNS = {
    "repetitions within repetitions": "((((((a{1,100}){1,100}){1,100}){1,100}){1,100}){1,100}){1,100}",
    "states of a subset construction": "(?:.*a.{300}){3}",
}
"""Each compiles, or does not, within a second; following it is what takes long."""


def numbered(schema: Json, number: int) -> Json:
    """The same bomb to a cache that remembers bombs as another one."""
    return {**schema, "title": f"bomb {number}", "description": "x" * number}


def requests(model: str, schema: Json) -> Iterator[tuple[str, Json, str]]:
    """Every way by which a schema reaches the compiler: path, body, and the field that a refusal names."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"]}}
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    chat: Json = {"model": model, "messages": MESSAGES, "max_tokens": 8}
    yield "/v1/chat/completions", chat | {"response_format": response_format}, "response_format"
    yield "/v1/chat/completions", chat | {"guided_json": schema}, "guided_json"
    tools = [{"type": "function", "function": {**function, "strict": True}}]
    yield "/v1/chat/completions", chat | {"tools": tools, "tool_choice": "required"}, "tools"
    prompt: Json = {"model": model, "prompt": "a"}
    yield "/v1/completions", prompt | {"max_tokens": 8, "guided_json": schema}, "guided_json"
    text = {"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}}
    response: Json = {"model": model, "input": "hello", "max_output_tokens": 16}
    yield "/v1/responses", response | {"text": text}, "text.format"
    whole: Json = {"stream": False, "format": schema}
    yield "/api/chat", {"model": model, "messages": MESSAGES} | whole, "format"
    yield "/api/generate", prompt | whole, "format"
    anthropic: Json = {"model": model, "messages": MESSAGES, "max_tokens": 8}
    used = {"name": "f", "input_schema": function["parameters"]}
    yield "/v1/messages", anthropic | {"tools": [used], "tool_choice": {"type": "any"}}, "tools"
