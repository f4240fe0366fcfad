"""The complement of a schema, as a schema: `not` is enforced where this can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Final, cast

from headrace.grammar.patterns import escaped
from headrace.grammar.schema.keywords import TYPES, Node, Schema, Unsupported, types_of

RAW_PATTERN: Final = "\0pattern"
"""A pattern that is written in Rust's dialect already; no schema from outside has this keyword."""
MAX_EXCLUDED_CHARACTERS: Final = 4000

Negate = Callable[[Any, Schema, str], list[Node]]


def negation(node: Node, at: str) -> Node:
    """A schema that holds where `node` does not; references in it stay, below `not`.

    It may hold less often: numbers that are no integers are left out. Raises Unsupported.
    """
    if isinstance(node, bool):
        return not node
    if set(node) == {"not"}:
        return cast("Node", node["not"])
    options: list[Node] = []
    for keyword, value in node.items():
        if keyword not in _NEGATIONS:
            raise Unsupported(keyword, at, "is not supported inside `not`, `if` or a `oneOf` that overlaps")
        options += _NEGATIONS[keyword](value, node, at)
    return any_of(options)


def any_of(options: Sequence[Node]) -> Node:
    """A schema for one of several; False where there is none."""
    left = [option for option in options if option is not False]
    if any(option is True or option == {} for option in left):
        return True
    return {"anyOf": left} if len(left) > 1 else left[0] if left else False


def complement(node: Node) -> Node:
    """`not` of a schema, without looking into it."""
    return not node if isinstance(node, bool) else {"not": node}


def _types(value: Any, node: Schema, at: str) -> list[Node]:
    allowed = types_of({"type": value})
    left = frozenset(TYPES) - allowed
    return of_types(left - {"number"} if "integer" in allowed else left)


def of_types(types: frozenset[str]) -> list[Node]:
    """A schema for instances of some types; none if there are none."""
    left = [name for name in TYPES if name in types and not (name == "integer" and "number" in types)]
    return [{"type": left}] if left else []


def _values(values: Sequence[Any], at: str) -> list[Node]:
    """What is none of some constants."""
    options: list[Node] = []
    given = {name: [value for value in values if _type_of(value) == name] for name in TYPES}
    for name in ("null", "boolean", "number", "string", "array", "object"):
        if not given[name]:
            options.append({"type": name})
    if len({*given["boolean"]}) == 1:
        options.append({"const": not given["boolean"][0]})
    if given["number"]:
        options += _other_numbers(sorted(given["number"]))
    if given["string"]:
        options.append({"type": "string", RAW_PATTERN: f"^(?:{_other_texts(given['string'], at)})$"})
    for name, others in (("array", _other_arrays), ("object", _other_objects)):
        if given[name]:
            options.append({"allOf": [any_of(others(value)) for value in given[name]]})
    return options


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int, "number"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")


def _other_numbers(values: list[float]) -> list[Node]:
    below = {"type": "number", "exclusiveMaximum": values[0]}
    above = {"type": "number", "exclusiveMinimum": values[-1]}
    between: list[Node] = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in pairwise(values)
        if low < high
    ]
    return [below, *between, above]


def _other_texts(texts: Sequence[str], at: str) -> str:
    """A pattern, without anchors, for all texts but some: it leaves their tree of prefixes at any point."""
    if sum(map(len, texts)) > MAX_EXCLUDED_CHARACTERS:
        raise Unsupported("not", at, f"excludes texts of more than {MAX_EXCLUDED_CHARACTERS:,} characters")
    if any(len(text) > 256 for text in texts):
        raise Unsupported("not", at, "excludes a text of more than 256 characters")
    nodes: dict[str, set[str]] = {"": set()}
    for text in texts:
        for end, character in enumerate(text):
            nodes.setdefault(text[:end], set()).add(character)
            nodes.setdefault(text[: end + 1], set())
    options: list[str] = []
    excluded = set(texts)
    for prefix, following in nodes.items():
        written = "".join(map(escaped, prefix))
        if prefix not in excluded:
            options.append(written)
        other = f"[^{''.join(map(escaped, sorted(following)))}]" if following else "(?s:.)"
        options.append(f"{written}{other}(?s:.*)")
    return "|".join(options)


def _other_arrays(value: list[Any]) -> list[Node]:
    options: list[Node] = [{"type": "array", "minItems": len(value) + 1}]
    if value:
        options.append({"type": "array", "maxItems": len(value) - 1})
    return options + [
        {"type": "array", "minItems": index + 1, "prefixItems": [True] * index + [{"not": {"const": item}}]}
        for index, item in enumerate(value)
    ]


def _other_objects(value: dict[str, Any]) -> list[Node]:
    names = list(value)
    options: list[Node] = [{"type": "object", "required": names, "minProperties": len(names) + 1}]
    for name, entry in value.items():
        options.append({"type": "object", "properties": {name: False}})
        options.append(
            {"type": "object", "required": [name], "properties": {name: {"not": {"const": entry}}}}
        )
    return options


def _required(names: Any, node: Schema, at: str) -> list[Node]:
    return [{"type": "object", "properties": {name: False}} for name in names]


def _properties(entries: Any, node: Schema, at: str) -> list[Node]:
    return [
        {"type": "object", "required": [name], "properties": {name: complement(entry)}}
        for name, entry in entries.items()
        if entry is not True and entry != {}
    ]


def _bound(keyword: str) -> Negate:
    return lambda value, node, at: [{"type": "number", keyword: value}]


def _at_most(kind: str, keyword: str) -> Negate:
    return lambda value, node, at: [{"type": kind, keyword: value - 1}] if value else []


def _at_least(kind: str, keyword: str) -> Negate:
    return lambda value, node, at: [{"type": kind, keyword: value + 1}]


def _items(value: Any, node: Schema, at: str) -> list[Node]:
    """An item that does not match, behind those of `prefixItems`."""
    first = len(node.get("prefixItems", []))
    if value is False:
        return [{"type": "array", "minItems": first + 1}]
    return [{"type": "array", "contains": complement(value), FIRST_CONTAINED: first}]


FIRST_CONTAINED: Final = "\0first"
"""How many items at the beginning `contains` does not look at; no schema from outside has this keyword."""


def _prefix_items(entries: Any, node: Schema, at: str) -> list[Node]:
    return [
        {"type": "array", "minItems": index + 1, "prefixItems": [True] * index + [complement(entry)]}
        for index, entry in enumerate(entries)
    ]


def _contains(value: Any, node: Schema, at: str) -> list[Node]:
    least, most = node.get("minContains", 1), node.get("maxContains")
    options: list[Node] = []
    if least == 1:
        options.append({"type": "array", "items": complement(value)})
    elif least:
        options.append({"type": "array", "contains": value, "minContains": 0, "maxContains": least - 1})
    if most is not None:
        options.append({"type": "array", "contains": value, "minContains": most + 1})
    return options


def _one_of(entries: Any, node: Schema, at: str) -> list[Node]:
    pairs: list[Node] = [{"allOf": list(pair)} for pair in combinations(entries, 2)]
    return [{"allOf": [complement(entry) for entry in entries]}, *pairs]


def _if(value: Any, node: Schema, at: str) -> list[Node]:
    options: list[Node] = []
    if "then" in node:
        options.append({"allOf": [value, complement(node["then"])]})
    if "else" in node:
        options.append({"allOf": [complement(value), complement(node["else"])]})
    return options


def _dependent_required(entries: Any, node: Schema, at: str) -> list[Node]:
    return [
        {"type": "object", "required": [name], "properties": {missing: False}}
        for name, wanted in entries.items()
        for missing in wanted
        if missing != name
    ]


def _dependent_schemas(entries: Any, node: Schema, at: str) -> list[Node]:
    return [
        {"type": "object", "required": [name], "allOf": [complement(entry)]}
        for name, entry in entries.items()
    ]


def _pattern_properties(entries: Any, node: Schema, at: str) -> list[Node]:
    """Objects of nothing but properties of one pattern, that do not match its schema."""
    return [
        {
            "type": "object",
            "patternProperties": {pattern: complement(entry)},
            "additionalProperties": False,
            "minProperties": 1,
        }
        for pattern, entry in entries.items()
        if entry is not True and entry != {}
    ]


def _additional(value: Any, node: Schema, at: str) -> list[Node]:
    if value is True or value == {}:
        return []
    raise Unsupported(
        "additionalProperties", at, "is not supported inside `not`, `if` or an overlapping `oneOf`"
    )


def _none(value: Any, node: Schema, at: str) -> list[Node]:
    return []


_NEGATIONS: Final[Mapping[str, Negate]] = {
    "type": _types,
    "enum": lambda value, node, at: _values(value, at),
    "const": lambda value, node, at: _values([value], at),
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "minimum": _bound("exclusiveMaximum"),
    "exclusiveMinimum": _bound("maximum"),
    "maximum": _bound("exclusiveMinimum"),
    "exclusiveMaximum": _bound("minimum"),
    "minLength": _at_most("string", "maxLength"),
    "maxLength": _at_least("string", "minLength"),
    "minItems": _at_most("array", "maxItems"),
    "maxItems": _at_least("array", "minItems"),
    "minProperties": _at_most("object", "maxProperties"),
    "maxProperties": _at_least("object", "minProperties"),
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "minContains": _none,
    "maxContains": _none,
    "allOf": lambda value, node, at: [complement(entry) for entry in value],
    "anyOf": lambda value, node, at: [{"allOf": [complement(entry) for entry in value]}],
    "oneOf": _one_of,
    "not": lambda value, node, at: [value],
    "if": _if,
    "then": _none,
    "else": _none,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "$ref": lambda value, node, at: [{"not": {"$ref": value}}],
}
