"""Calls with one pair of tags per argument and unquoted strings: Qwen3-Coder, GLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Show, Steps
from headrace.chat.tool_formats.values import json_text, value_of
from headrace.chat.tools import Tool

_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Parameters(Struct, frozen=True, kw_only=True):
    """A call is `before`, the name, `after`, the arguments, `last`; an argument is `key`, its name,
    `value`, its value, `end`.

    A string is written as is, anything else as JSON; the tool's schema determines which. White space around
    tags is free, but white space of a value is kept, except one `frame` on either side. The format has no
    escapes, so a value ends where `end` is followed by something that may come next.
    """

    before: str = ""
    after: str
    key: str
    value: str
    end: str
    frame: str = ""
    gap: str = ""
    last: str
    closes: tuple[str, ...]
    """What may follow the last argument."""
    by_argument: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Tags that may be special tokens."""
        texts = (self.before, self.key, self.value, self.end, self.last)
        return tuple(text.strip() for text in texts if text.strip())

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse a call."""
        yield from reader.space()
        if self.before:
            yield from reader.expect(self.before.strip())
        name = yield from reader.word("<>")
        tool = output.tools.get(name)
        if tool is None:
            raise Malformed
        yield from reader.space()
        if self.after.strip():
            yield from reader.expect(self.after.strip())
            yield from reader.space()
        output.start(name)
        output.arguments("{")
        separator = ""
        while (yield from reader.literal(self.key.strip())):
            parts: list[str] = []
            if not (yield from reader.until((_tag(self.value)[0],), parts.append)):
                raise Malformed
            key = "".join(parts).strip()
            for part in _tag(self.value)[1:]:
                yield from reader.space()
                yield from reader.expect(part)
            output.arguments(f"{separator}{json_text(key)}: ")
            yield from self._value(reader, output.arguments, tool.properties.get(key))
            yield from reader.space()
            separator = ", "
        output.arguments("}")
        output.end()
        if self.last.strip():
            yield from reader.literal(self.last.strip())

    def _value(self, reader: Reader, show: Show, schema: object) -> Steps[None]:
        """Parse a value: strings are emitted as they arrive, other values when complete."""
        types = _types_of(schema)
        if self.frame:
            yield from reader.literal(self.frame)
        if types == frozenset({"string"}):
            show('"')
            yield from self._text(reader, lambda text: show(json_text(text)[1:-1]))
            show('"')
        else:
            parts: list[str] = []
            yield from self._text(reader, parts.append)
            show(json_text(_typed("".join(parts), types)))

    def _text(self, reader: Reader, show: Show) -> Steps[None]:
        ends = tuple({self.frame + self.end, self.end})
        while True:
            mark = yield from reader.until(ends, show)
            if not mark:
                raise Malformed
            if (yield from reader.followed_by(self.key.strip(), *self.closes)):
                return
            show(mark)

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """A call with the arguments of `schema` in order; those not required are optional."""
        strict = Tool(tool.name, "", schema)
        head = lark.text(before + self.beginning(tool))
        arguments = [
            self._argument(lark, key, entry) + ("" if key in strict.required else "?")
            for key, entry in strict.properties.items()
        ]
        if "properties" not in schema:
            name = lark.rule(r"/[A-Za-z0-9_-]{1,64}/")
            arguments = [self._argument(lark, name, {"type": "string"}, is_rule=True) + "*"]
        return f"{head} {' '.join(arguments)} {lark.text(self.last)}"

    def beginning(self, tool: Tool) -> str:
        """Up to the first argument."""
        return f"{self.before}{tool.name}{self.after}"

    def _argument(self, lark: Lark, key: str, schema: object, *, is_rule: bool = False) -> str:
        name = key if is_rule else lark.text(key)
        if "string" in _types_of(schema) and not _mapping(schema).get("enum"):
            value = lark.up_to(self.frame + self.end)
        else:
            choices = cast("list[object]", _mapping(schema).get("enum") or [])
            texts = [choice if isinstance(choice, str) else json_text(choice) for choice in choices]
            one = lark.any_of(map(lark.text, texts)) if texts else lark.json(_mapping(schema))
            value = f"{one} {lark.text(self.frame + self.end)}"
        before = f"{lark.text(self.key)} {name} {lark.text(self.value + self.frame)}"
        return f"({before} {value} {lark.text(self.gap)})"


def _tag(text: str) -> list[str]:
    """The tags of a text, split at white space."""
    return text.split()


def _typed(text: str, types: frozenset[str]) -> object:
    """The value that `text` represents; a string if it has no other type that the schema accepts."""
    try:
        value = value_of(text)
    except (Malformed, ValueError):
        return text
    others = types - {"string"}
    if not types:
        return value
    takes = any(isinstance(value, _TYPES.get(name, (object,))) for name in others)
    is_flag_as_number = isinstance(value, bool) and "boolean" not in others
    return value if takes and not is_flag_as_number else text


def _types_of(schema: object) -> frozenset[str]:
    """Types that a schema accepts; empty if it does not specify them."""
    fields = _mapping(schema)
    found = fields.get("type")
    if isinstance(found, str):
        return frozenset({found})
    if isinstance(found, list):
        return frozenset(str(name) for name in cast("list[object]", found))
    options: Iterable[object] = fields.get("anyOf") or fields.get("oneOf") or []
    nested = [_types_of(option) for option in options]
    if nested and all(nested):
        return frozenset[str]().union(*nested)
    values: list[object] = fields.get("enum") or ([fields["const"]] if "const" in fields else [])
    return (
        frozenset({"string"}) if values and all(isinstance(value, str) for value in values) else frozenset()
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
