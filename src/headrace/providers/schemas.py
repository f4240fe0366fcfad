"""JSON Schemas on their way to a provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from headrace.grammar.constraint import Constraint

MAX_DEPTH = 64
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")


def schema_of(wanted: Constraint, *, closes: bool) -> dict[str, Any] | bool:
    """The schema of a constraint; with `closes`, objects that list properties have no others unless the
    schema says so, as models of this machine have it. Raises GrammarError where it is none."""
    try:
        schema: Any = json.loads(wanted.text)
    except (ValueError, RecursionError) as error:
        raise wanted.error(f"is not JSON: {str(error)[:200]}") from None
    if not isinstance(schema, dict | bool):
        raise wanted.error("is neither an object nor true or false")
    found = cast("dict[str, Any] | bool", schema)
    return _closed(found, 0, wanted) if closes else found


def _closed(schema: Any, depth: int, wanted: Constraint) -> Any:
    if depth > MAX_DEPTH:
        raise wanted.error(f"is nested more than {MAX_DEPTH} deep")
    if not isinstance(schema, dict):
        return schema
    found = dict(cast("dict[str, Any]", schema))
    for key, value in found.items():
        if key in _MAPS and isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            found[key] = {name: _closed(one, depth + 1, wanted) for name, one in entries.items()}
        elif key in _LISTS and isinstance(value, list):
            found[key] = [_closed(one, depth + 1, wanted) for one in cast("list[Any]", value)]
        elif key == "items":
            found[key] = _closed(value, depth + 1, wanted)
    is_open = found.keys().isdisjoint(("additionalProperties", "unevaluatedProperties", "allOf"))
    if isinstance(found.get("properties"), dict) and is_open:
        found["additionalProperties"] = False
    return found


def is_strict(schema: Any) -> bool:
    """Whether OpenAI takes a schema as strict: every object is closed and requires all its properties."""
    if not isinstance(schema, dict):
        return False
    fields = cast("dict[str, Any]", schema)
    if fields.keys().isdisjoint(("type", "enum", "const", "anyOf", "$ref")):
        return False
    if "object" in _types(fields) or "properties" in fields:
        properties: Mapping[str, Any] = fields.get("properties") or {}
        if fields.get("additionalProperties") is not False or set(properties) - set(
            fields.get("required") or ()
        ):
            return False
    inner: list[Any] = [fields["items"]] if "items" in fields else []
    for key in _MAPS:
        inner += cast("dict[str, Any]", fields.get(key) or {}).values()
    for key in _LISTS:
        inner += cast("list[Any]", fields.get(key) or [])
    return all(is_strict(one) for one in inner)


def _types(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    kind = fields.get("type")
    return tuple(cast("list[Any]", kind)) if isinstance(kind, list) else (kind,)
