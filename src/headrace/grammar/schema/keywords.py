"""Keywords of JSON Schema: which hold schemas, which are enforced, which say nothing about an instance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

Schema = dict[str, Any]
Node = Schema | bool
"""A schema after `Document` has read it: keywords of draft 2020-12, references to its definitions."""

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords with a schema under each of their names."""
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords with a list of schemas."""
SINGLE: Final = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "additionalItems"}
    | {"unevaluatedItems", "contains", "not", "if", "then", "else"}
)
"""Keywords with one schema."""
COUNTS: Final = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
    | {"minContains", "maxContains"}
)
NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
IDENTIFIERS: Final = frozenset(
    {"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema", "$defs", "definitions"}
)
"""What references are resolved by."""
ENFORCED: Final = (
    MAPS | LISTS | SINGLE | COUNTS | NUMBERS | REFERENCES | {"type", "enum", "const", "required"}
) - {"$defs", "definitions"} | {"pattern", "format", "uniqueItems", "dependentRequired"}
SILENT_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "contentMediaType", "contentEncoding", "contentSchema", "discriminator", "$vocabulary"}
)
"""Annotations of the standard and of OpenAPI, too common for a warning. Any other unknown keyword has one."""
IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas")
"""Keywords whose schemas apply to the same instance, and tell which of its parts are evaluated."""


class Unsupported(Exception):
    """A keyword that cannot be enforced, with its place as a JSON Pointer and the cause."""

    def __init__(self, keyword: str, at: str, cause: str) -> None:
        super().__init__(f"schema keyword {keyword!r} at {at[:200]} {cause}")
        self.keyword = keyword


class MalformedSchema(Exception):
    """Something else stands where a schema must stand."""


def children(node: Schema) -> Iterator[tuple[str, object]]:
    """Schemas directly inside a raw one, with their places relative to it."""
    for keyword, value in node.items():
        if keyword in MAPS and isinstance(value, dict):
            for name, entry in cast("Schema", value).items():
                if not isinstance(entry, list):  # `dependencies` also lists names
                    yield f"{keyword}/{name}", entry
        elif keyword in LISTS or (keyword == "items" and isinstance(value, list)):
            if isinstance(value, list):
                for index, entry in enumerate(cast("list[object]", value)):
                    yield f"{keyword}/{index}", entry
        elif keyword in SINGLE:
            yield keyword, value


def types_of(node: Schema) -> frozenset[str]:
    """The types that `type` admits, each with the types inside it."""
    given = node.get("type", list(TYPES))
    names = frozenset(cast("list[str]", [given] if isinstance(given, str) else given))
    return names | {"integer"} if "number" in names else names
