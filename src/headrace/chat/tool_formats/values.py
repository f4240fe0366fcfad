"""Parse values inside calls in a family's notation, and emit them as JSON text while they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from headrace.chat.tool_formats.reader import Malformed, Reader, Show, Steps

MAX_DEPTH = 64
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_PYTHON_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "0": "\0",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
}


class ValueSyntax(Struct, frozen=True):
    """A notation of JSON values. `escapes` is None if strings have no escapes and end at the next quote;
    with `bare_keys`, keys are unquoted.
    """

    quotes: tuple[str, ...]
    constants: Mapping[str, str]
    escapes: str | None = None
    bare_keys: bool = False


_JSON_CONSTANTS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
JSON = ValueSyntax(('"',), _JSON_CONSTANTS, "json")
PYTHON = ValueSyntax(('"', "'"), _JSON_CONSTANTS | _PYTHON_CONSTANTS, "python")


def quoted_by(quote: str) -> ValueSyntax:
    """Strings between two `quote` markers without escapes, unquoted keys: the Gemma families."""
    return ValueSyntax((quote,), _JSON_CONSTANTS | _PYTHON_CONSTANTS, None, bare_keys=True)


def json_text(value: object) -> str:
    """A value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def read_value(reader: Reader, show: Show, syntax: ValueSyntax = JSON, depth: int = 0) -> Steps[None]:
    """Parse one value and emit it as JSON; raises Malformed at the first invalid character."""
    yield from reader.space()
    quote = yield from reader.literal(*syntax.quotes)
    first = "" if quote else (yield from reader.peek())
    if depth > MAX_DEPTH:
        raise Malformed
    if quote:
        yield from _string(reader, show, quote, syntax)
    elif first == "{":
        yield from reader.take()
        yield from read_members(reader, show, syntax, "}", depth)
    elif first == "[":
        yield from reader.take()
        yield from _items(reader, show, syntax, depth)
    else:
        show(_scalar((yield from reader.word(",:]})")), syntax))


def read_members(reader: Reader, show: Show, syntax: ValueSyntax, end: str, depth: int = 0) -> Steps[None]:
    """Parse keys and values up to `end` and emit them as a JSON object."""
    show("{")
    yield from reader.space()
    if not (yield from reader.literal(end)):
        while True:
            yield from _key(reader, show, syntax)
            show(": ")
            yield from read_value(reader, show, syntax, depth + 1)
            yield from reader.space()
            if (yield from reader.expect(",", end)) == end:
                break
            show(", ")
            yield from reader.space()
    show("}")


def read_text(reader: Reader) -> Steps[str]:
    """A JSON string, decoded."""
    yield from reader.space()
    yield from reader.expect('"')
    parts: list[str] = []
    yield from _string(reader, parts.append, '"', JSON)
    return cast(str, json.loads("".join(parts)))


def read_arguments(reader: Reader, show: Show) -> Steps[None]:
    """A JSON object. Some models write it inside a string, or null for no arguments; both are accepted."""
    yield from reader.space()
    first = yield from reader.peek()
    if first == "{":
        yield from read_value(reader, show)
    elif first == '"':
        show(json_text(parsed_object((yield from read_text(reader)))))
    elif (yield from reader.literal("null")):
        show("{}")
    else:
        raise Malformed


def parsed_object(text: str) -> Mapping[str, object]:
    """Parse a JSON object."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return cast("dict[str, object]", value)


def value_of(text: str) -> object:
    """The value of a text in JSON or, as some templates print it, Python; raises Malformed."""
    reader, parts = Reader(), list[str]()
    reader.feed(text.strip())
    reader.ended = True
    for _ in read_value(reader, parts.append, PYTHON):
        raise Malformed
    if reader.rest:
        raise Malformed
    return cast(object, json.loads("".join(parts)))


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _key(reader: Reader, show: Show, syntax: ValueSyntax) -> Steps[None]:
    quote = yield from reader.literal(*syntax.quotes)
    if quote:
        yield from _string(reader, show, quote, syntax)
        yield from reader.space()
        yield from reader.expect(":")
    elif syntax.bare_keys:
        parts: list[str] = []
        if not (yield from reader.until((":",), parts.append)):
            raise Malformed
        show(json_text("".join(parts)))
    else:
        raise Malformed


def _items(reader: Reader, show: Show, syntax: ValueSyntax, depth: int) -> Steps[None]:
    show("[")
    yield from reader.space()
    if not (yield from reader.literal("]")):
        while True:
            yield from read_value(reader, show, syntax, depth + 1)
            yield from reader.space()
            if (yield from reader.expect(",", "]")) == "]":
                break
            show(", ")
    show("]")


def _string(reader: Reader, show: Show, quote: str, syntax: ValueSyntax) -> Steps[None]:
    show('"')
    marks = (quote,) if syntax.escapes is None else (quote, "\\")
    while True:
        mark = yield from reader.until(marks, lambda text: show(json_text(text)[1:-1]))
        if mark == quote:
            break
        if not mark:
            raise Malformed
        letter = yield from reader.take()
        escape = _json_escape if syntax.escapes == "json" else _python_escape
        show((yield from escape(reader, letter)))
    show('"')


def _json_escape(reader: Reader, letter: str) -> Steps[str]:
    if letter in '"\\/bfnrt':
        return "\\" + letter
    if letter != "u":
        raise Malformed
    return f"\\u{(yield from _hex(reader, 4)):04x}"


def _python_escape(reader: Reader, letter: str) -> Steps[str]:
    if letter in _HEX_DIGITS:
        code = yield from _hex(reader, _HEX_DIGITS[letter])
        if code > 0x10FFFF:
            raise Malformed
        # In JSON, two UTF-16 surrogate escapes are one character as well.
        return f"\\u{code:04x}" if code < 0x10000 else chr(code)
    return json_text(_PYTHON_ESCAPES.get(letter, "\\" + letter))[1:-1]


def _hex(reader: Reader, size: int) -> Steps[int]:
    digits = yield from reader.take(size)
    if not re.fullmatch(r"[0-9a-fA-F]+", digits):
        raise Malformed
    return int(digits, 16)


def _scalar(word: str, syntax: ValueSyntax) -> str:
    constant = syntax.constants.get(word)
    if constant is None and not _NUMBER.fullmatch(word):
        raise Malformed
    return word if constant is None else constant
