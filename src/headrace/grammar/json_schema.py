"""JSON Schemas before they are compiled: every keyword is enforced, an annotation, or refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from headrace.grammar.constraint import MAX_LEVELS, MAX_NESTING, GrammarError
from headrace.grammar.patterns import FORMAT_PATTERNS, NATIVE_FORMATS, rust_pattern

Schema = dict[str, Any]

OPTIONS: Final = {
    # One spelling per key: with \uXXXX a listed property could come again as an additional one.
    "json_allowed_escapes": 'nrbtf\\"',
    # A space, or a line break and its indentation: a model that likes white space must not dwell in it.
    "whitespace_pattern": r"(?: |\n[ \t]{0,40})",
}
"""How llguidance spells JSON."""

_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS: Final = frozenset({"additionalProperties", "items", "additionalItems"})
_COUNTS: Final = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_VALUES: Final = frozenset(
    {"type", "enum", "const", "required", "pattern", "format", "$ref", "$id", "id", "$anchor", "$schema"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "contentMediaType", "contentEncoding", "contentSchema", "discriminator"}
)
_LARGEST_EXACT: Final = 2**53  # numbers become float64
_UNSPELLABLE: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_OLD_DRAFTS: Final = ("draft-04", "draft-06", "draft-07", "2019-09")
_DRAFTS: Final = frozenset(
    {f"http://json-schema.org/{draft}/schema" for draft in _OLD_DRAFTS[:3]}
    | {f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")}
)


def schema_text(schema: object, *, param: str = "json_schema") -> str:
    """The schema as JSON for `%json` in a lark grammar, with nothing in it that would not be enforced.

    Raises GrammarError that names the keyword and its place. Beyond JSON Schema: properties come in the order
    of the schema, formats are enforced, white space is one space or a line break with its indentation.
    """
    if isinstance(schema, bool):
        checked: object = {} if schema else {"enum": []}
    else:
        checker = _Checker(param, schema)
        checked = checker.schema(schema, "#", 0)
        checker.check_levels()
    return json.dumps({**cast("Schema", checked), "x-guidance": OPTIONS}, ensure_ascii=False)


class _Checker:
    """Copies a schema, refusing what would not be enforced."""

    def __init__(self, param: str, root: object) -> None:
        self._param = param
        self._references: set[str] = set()
        self._deepest = 0
        declared = cast("Schema", root).get("$schema", "") if isinstance(root, dict) else ""
        if declared and str(declared).removesuffix("#") not in _DRAFTS:
            raise self._error("$schema", "#", f"is {str(declared)[:80]!r}, no draft of JSON Schema from 4 on")
        self._old_draft = any(draft in str(declared) for draft in _OLD_DRAFTS)

    def schema(self, schema: object, at: str, depth: int) -> object:
        """A copy of the schema at the place `at`."""
        if depth > MAX_NESTING:
            raise GrammarError(
                f"{self._param} is nested deeper than {MAX_NESTING} levels: use $ref", param=self._param
            )
        self._deepest = max(self._deepest, depth)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(
                f"{self._param} has {str(schema)[:40]!r} at {at}, where a schema (an object or a boolean) "
                "must stand",
                param=self._param,
            )
        node = cast("Schema", schema)
        out: Schema = {}
        for keyword, value in node.items():
            if not self._is_annotation(keyword, value):
                out[keyword] = self._keyword(keyword, value, at, depth)
        self._check_arrays(node, at)
        self._check_objects(node, at)
        return self._strings(out, at)

    def check_levels(self) -> None:
        """Refuse a schema whose references could be followed so deeply that a compiler runs out of stack."""
        if len(self._references) * self._deepest > MAX_LEVELS:
            raise GrammarError(
                f"{self._param} has {len(self._references):,} references and {self._deepest} levels: "
                f"references times levels may be {MAX_LEVELS:,}",
                param=self._param,
            )

    def _keyword(self, keyword: str, value: Any, at: str, depth: int) -> Any:
        inside = f"{at}/{keyword}"
        if keyword in _MAPS:
            entries = self._of_type(keyword, at, value, dict)
            return {
                self._name(keyword, name, at): self.schema(entry, f"{inside}/{name}", depth + 1)
                for name, entry in entries.items()
            }
        if keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            entries = self._of_type(keyword, at, value, list)
            return [self.schema(entry, f"{inside}/{index}", depth + 1) for index, entry in enumerate(entries)]
        if keyword in _SCHEMAS:
            return self.schema(value, inside, depth + 1)
        if keyword in _COUNTS:
            return int(value) if isinstance(value, float) and value.is_integer() else value
        if keyword in _VALUES:
            self._check_value(keyword, value, at, depth)
            if keyword == "$ref":
                self._references.add(str(value))
            if keyword in ("$id", "id") and at != "#":
                raise self._error(keyword, at, "is only supported at the root")
            return value
        raise self._error(keyword, at, "is not supported: leave it out")

    def _is_annotation(self, keyword: str, value: object) -> bool:
        if keyword == "uniqueItems":
            return value is False
        return keyword in _ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance")

    def _name(self, keyword: str, name: str, at: str) -> str:
        self._check_value(keyword, name, at, 0)
        return self._pattern(name, keyword, at) if keyword == "patternProperties" else name

    def _strings(self, node: Schema, at: str) -> Schema:
        """Patterns in Rust's dialect, and formats as patterns where llguidance is too lenient."""
        if isinstance(node.get("pattern"), str):
            node["pattern"] = self._pattern(node["pattern"], "pattern", at)
        name = node.get("format")
        if name is None or name in NATIVE_FORMATS:
            return node
        if name not in FORMAT_PATTERNS:
            known = ", ".join(sorted({*FORMAT_PATTERNS, *NATIVE_FORMATS}))
            raise self._error("format", at, f"is {str(name)[:40]!r}; supported are {known}")
        del node["format"]
        pattern = {"pattern": FORMAT_PATTERNS[name]}
        if name == "hostname":
            return {**node, "allOf": [*node.get("allOf", []), {**pattern, "maxLength": 253}]}
        if "pattern" in node:
            return {**node, "allOf": [*node.get("allOf", []), pattern]}
        return {**node, **pattern}

    def _pattern(self, pattern: str, keyword: str, at: str) -> str:
        try:
            return rust_pattern(pattern)
        except ValueError as error:
            raise self._error(keyword, at, f"has {error}") from None

    def _check_arrays(self, node: Mapping[str, Any], at: str) -> None:
        if "prefixItems" in node and (self._old_draft or isinstance(node.get("items"), list)):
            raise self._error(
                "prefixItems", at, "is of draft 2020-12: not with `items` as a list or an old $schema"
            )
        if "additionalItems" in node and ("prefixItems" in node or not isinstance(node.get("items"), list)):
            raise self._error("additionalItems", at, "has no effect without `items` as a list: use items")

    def _check_objects(self, node: Mapping[str, Any], at: str) -> None:
        """A grammar cannot see that a name comes twice, so it must not be the one to count names."""
        least, required = node.get("minProperties"), node.get("required")
        named = len(cast("list[object]", required)) if isinstance(required, list) else 0
        if isinstance(least, int | float) and least > named + 1:
            raise self._error(
                "minProperties", at, f"is {least}: at most one more than is `required` ({named}) is supported"
            )

    def _check_value(self, keyword: str, value: object, at: str, depth: int) -> None:
        """Refuse what would be enforced a little beside: numbers that float64 does not hold, and characters
        that have only a \\u spelling (see OPTIONS)."""
        if depth > MAX_NESTING:
            raise self._error(keyword, at, f"is nested deeper than {MAX_NESTING} levels")
        if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
            raise self._error(keyword, at, f"has {str(value)[:40]}: beyond 2^53 numbers are not exact")
        if isinstance(value, str) and _UNSPELLABLE.search(value):
            raise self._error(keyword, at, "has control characters, which are not supported")
        entries: list[object] = []
        if isinstance(value, dict):
            entries = [*cast("Schema", value), *cast("Schema", value).values()]
        elif isinstance(value, list):
            entries = cast("list[object]", value)
        for entry in entries:
            self._check_value(keyword, entry, at, depth + 1)

    def _of_type(self, keyword: str, at: str, value: Any, kind: Callable[..., Any]) -> Any:
        if isinstance(value, cast("type", kind)):
            return value
        raise self._error(
            keyword, at, f"is {str(value)[:40]!r}, it must be {'an object' if kind is dict else 'a list'}"
        )

    def _error(self, keyword: str, at: str, cause: str) -> GrammarError:
        return GrammarError(
            f"{self._param}: schema keyword {keyword!r} at {at[:200]} {cause}", param=self._param
        )
