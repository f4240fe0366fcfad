"""What msgspec says of a body in words of the API: the place, what it must be, and what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, cast

import msgspec
from msgspec import Struct, inspect

from headrace.config.names import nearest
from headrace.errors import InvalidRequest

_PLACE = re.compile(r"(.*?)(?: - at (?:(`key`) in )?`\$([^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected (`.+?`)( .*?)?(?:, got `(.+)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_NOTHING = object()


def refusal_of(
    error: msgspec.ValidationError, kind: type[Struct], content: object, place: str = ""
) -> InvalidRequest:
    """The refusal of `content`, which is no `kind`; its param is the first step of the place, or `place`."""
    text, of_key, path = _parts(error)
    if missing := _MISSING.fullmatch(text):
        path.append(missing[1])
        choices = _choices(kind, path, content)
        problem = "missing, it is required" if not choices else f"missing, it must be {_one_of(choices)}"
        code = "missing_required_parameter"
    elif unknown := _UNKNOWN.fullmatch(text):
        known = _fields(kind, path, content)
        path.append(unknown[1][:80])
        problem = f"unknown field{nearest(unknown[1][:80], known) if known else ''}"
        code = "unknown_parameter"
    else:
        value = _NOTHING if of_key else _value(content, path)
        problem, code = _wrong(text, value, _choices(kind, path, content), "its keys " if of_key else "")
    steps = [*([place] if place else []), *("*" if step == "..." else str(step) for step in path)]
    return InvalidRequest(
        f"{'.'.join(steps) or 'the body'}: {problem}", param=steps[0] if steps else None, code=code
    )


def make_integer(error: msgspec.ValidationError, content: object) -> bool:
    """Write 1 for 1.0 where that is what was wrong with `content`: to JSON Schema both are integers."""
    text, _, path = _parts(error)
    value = _value(content, path)
    if not path or "int" not in text or not isinstance(value, float) or not value.is_integer():
        return False
    cast("Any", _value(content, path[:-1]))[path[-1]] = int(value)
    return True


def _parts(error: msgspec.ValidationError) -> tuple[str, bool, list[str | int]]:
    """What is wrong, whether with a key, and where."""
    found = _PLACE.fullmatch(str(error))
    assert found is not None
    steps = _STEP.findall(found[3] or "")
    path = [int(index) if index.isdecimal() else name or index for name, index in steps]
    return found[1], bool(found[2]), path


def _wrong(text: str, value: object, choices: Sequence[str], what: str) -> tuple[str, str]:
    """What is wrong with a value, and the code of that."""
    expected = _EXPECTED.fullmatch(text)
    if expected is None:
        said = f"must be {_one_of(choices)}" if choices else text[:1].lower() + text[1:200]
        return f"{what if choices else ''}{said}{_shown(value)}", "invalid_value"
    kinds = [_WORDS.get(kind, kind) for kind in expected[1].strip("`").split(" | ") if kind != "null"]
    bound, got = expected[2] or "", expected[3]
    must = _one_of(choices) if choices and kinds == ["a string"] else f"{' or '.join(kinds)}{bound}"
    given = _shown(value) or (f", not {_WORDS.get(got, got)}" if got else "")
    return f"{what}must be {must}{given}", "invalid_type" if got else "invalid_value"


def _one_of(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def _value(content: object, path: Sequence[str | int]) -> object:
    """What is at a place; nothing where the path does not say which of an object's values it is."""
    for step in path:
        try:
            content = cast("Any", content)[step]
        except (LookupError, TypeError):
            return _NOTHING
    return content


def _shown(value: object) -> str:
    """The value, where it is short enough to be read in a message."""
    if value is _NOTHING or isinstance(value, dict | list):
        return ""
    return f", not {_WORDS['null'] if value is None else repr(value)[:60]}"


@cache
def _kind(kind: type[Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _choices(kind: type[Struct], path: Sequence[str | int], content: object) -> list[str]:
    """The values that may be at a place, where these are listed."""
    kinds = _kinds_at(kind, path, content)
    found = [str(value) for one in kinds if isinstance(one, inspect.LiteralType) for value in one.values]
    switch = ["true", "false"] if found and any(isinstance(one, inspect.BoolType) for one in kinds) else []
    return list(dict.fromkeys(switch + found))


def _fields(kind: type[Struct], path: Sequence[str | int], content: object) -> list[str]:
    """The names of the fields that the object at a place may have."""
    kinds = _matching(_kinds_at(kind, path, content), _value(content, path), "")
    structs = [one for one in kinds if isinstance(one, inspect.StructType)]
    return list(dict.fromkeys(field.encode_name for one in structs for field in one.fields))


def _kinds_at(kind: type[Struct], path: Sequence[str | int], content: object) -> list[inspect.Type]:
    """The types that the value at a place may have."""
    found = list(_members(_kind(kind)))
    for step in path:
        kinds = _matching(found, content, step)
        found = [part for one in kinds for inner in _inner(one, step) for part in _members(inner)]
        content = _value(content, [step])
    return found


def _matching(kinds: Sequence[inspect.Type], value: object, step: str | int) -> list[inspect.Type]:
    """Those of the types whose tag the value has, unless the next step is the tag itself."""
    return [
        one
        for one in kinds
        if not (isinstance(one, inspect.StructType) and isinstance(value, dict) and one.tag is not None)
        or step == one.tag_field
        or cast("dict[object, object]", value).get(one.tag_field) == one.tag
    ]


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _members(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _members(one)
    else:
        yield kind


def _inner(kind: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        if step == kind.tag_field and kind.tag is not None:
            yield inspect.LiteralType((kind.tag,))
        yield from (field.type for field in kind.fields if field.encode_name == step)
    elif isinstance(kind, inspect.ListType):
        yield kind.item_type
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type
