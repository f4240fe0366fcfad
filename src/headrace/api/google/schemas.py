"""Google's schemas (a part of OpenAPI 3.0, types in capitals) as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import InvalidRequest

_TYPES = frozenset({"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"})
_SAME = ("description", "enum", "pattern", "minimum", "maximum", "required", "default", "title")
# Written as text where they are 64 bits wide.
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_FORMATS = frozenset({"date", "date-time", "time", "duration", "uuid", "email"})
_UNUSED = frozenset({"example", "propertyOrdering", "format", "nullable", "type"})
# As the official client for Python writes them.
_SNAKE: Mapping[str, str] = {
    "any_of": "anyOf",
    "property_ordering": "propertyOrdering",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
}
_MAX_DEPTH = 64


def json_schema(schema: Mapping[str, Any], where: str, depth: int = 0) -> dict[str, Any]:
    """The JSON Schema; InvalidRequest names what is unknown. `where` is the field that it came from."""
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"{where} is nested more than {_MAX_DEPTH} deep: flatten it", param=where)
    found: dict[str, Any] = {}
    for written, value in schema.items():
        name = _SNAKE.get(written, written)
        if name in _SAME:
            found[name] = value
        elif name in _COUNTS:
            found[name] = _count(value, f"{where}.{name}")
        elif name == "items":
            found["items"] = json_schema(_object(value, f"{where}.items"), where, depth + 1)
        elif name == "properties":
            entries = _object(value, f"{where}.properties")
            found["properties"] = {
                key: json_schema(_object(one, f"{where}.properties.{key}"), where, depth + 1)
                for key, one in entries.items()
            }
        elif name == "anyOf" and isinstance(value, list):
            options = cast("list[object]", value)
            found["anyOf"] = [
                json_schema(_object(one, f"{where}.anyOf"), where, depth + 1) for one in options
            ]
        elif name not in _UNUSED:
            raise InvalidRequest(f"{where} has the unknown field {name[:60]!r}: remove it", param=where)
    kind = schema.get("type")
    if kind is not None:
        found["type"] = _type(kind, where)
    if schema.get("format") in _FORMATS:
        found["format"] = schema["format"]
    return _nullable(found) if schema.get("nullable") is True else found


def _type(kind: object, where: str) -> str:
    if not isinstance(kind, str) or kind.upper() not in _TYPES:
        raise InvalidRequest(
            f"{where}.type is {kind!r:.60}: it is one of {', '.join(sorted(_TYPES))}", param=where
        )
    return kind.lower()


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "type" in schema and "enum" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _count(value: object, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRequest(f"{where} is {value!r:.60}, it must be an integer", param=where.split(".")[0])


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is not an object", param=where.split(".")[0])
    return cast("dict[str, Any]", value)
