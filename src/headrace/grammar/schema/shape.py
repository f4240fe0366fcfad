"""What is known of a schema's instances: their types, constants, whether two schemas can overlap."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, Final, cast

from msgspec import Struct

from headrace.grammar.schema.keywords import TYPES, Node, Schema, types_of

Resolve = Callable[[str], Node]
MAX_COMPARED: Final = 200
"""Schemas that are compared with one another; time grows with the square."""
_MAX_DEPTH: Final = 8


class Shape(Struct, frozen=True):
    """All of a schema's conjuncts together: `constants` is None where there are no constants."""

    types: frozenset[str]
    constants: tuple[Any, ...] | None
    required: frozenset[str]
    properties: dict[str, list[Node]]
    unions: tuple[list[Node], ...]


def conjuncts(node: Node, resolve: Resolve, depth: int = 0) -> Iterator[Schema]:
    """The schemas that all hold where `node` does: itself, and those of `$ref` and `allOf`."""
    if isinstance(node, bool) or depth > _MAX_DEPTH:
        return
    yield node
    inner: list[Node] = list(node.get("allOf", []))
    if "$ref" in node:
        inner.append(resolve(node["$ref"]))
    for entry in inner:
        yield from conjuncts(entry, resolve, depth + 1)


def shape_of(node: Node, resolve: Resolve) -> Shape:
    """What all conjuncts of a schema say."""
    types, constants = frozenset(TYPES), None
    required: set[str] = set()
    properties: dict[str, list[Node]] = {}
    unions: list[list[Node]] = []
    for part in conjuncts(node, resolve):
        types &= types_of(part)
        given = cast("list[Any] | None", [part["const"]] if "const" in part else part.get("enum"))
        if given is not None:
            constants = given if constants is None else constants
            types &= frozenset().union(*(_types_of_value(value) for value in given))
        required.update(part.get("required", []))
        for name, entry in part.get("properties", {}).items():
            properties.setdefault(name, []).append(entry)
        unions += [part[keyword] for keyword in ("anyOf", "oneOf") if keyword in part]
    return Shape(
        types, None if constants is None else tuple(constants), frozenset(required), properties, tuple(unions)
    )


def are_disjoint(one: Node, other: Node, resolve: Resolve, depth: int = 0) -> bool:
    """True if it is certain that no instance matches both."""
    if one is False or other is False:
        return True
    if depth > _MAX_DEPTH or isinstance(one, bool) or isinstance(other, bool):
        return False
    a, b = shape_of(one, resolve), shape_of(other, resolve)
    common = a.types & b.types
    if not common:
        return True
    if a.constants is not None and b.constants is not None and not _keys(a.constants) & _keys(b.constants):
        return True
    if common == frozenset({"object"}) and _properties_differ(a, b, resolve, depth):
        return True
    return any(
        all(are_disjoint(option, against, resolve, depth + 1) for option in union)
        for shape, against in ((a, other), (b, one))
        for union in shape.unions
    )


def all_disjoint(nodes: Sequence[Node], resolve: Resolve) -> bool:
    """True if it is certain that no instance matches two of the schemas."""
    found = [shape_of(node, resolve).constants for node in nodes if not isinstance(node, bool)]
    if len(found) == len(nodes) and all(constants is not None for constants in found):
        keys = [key for constants in found for key in _keys(constants or ())]
        return len(keys) == len(set(keys))
    if len(nodes) > MAX_COMPARED:
        return False
    return all(are_disjoint(one, other, resolve) for one, other in combinations(nodes, 2))


def _properties_differ(a: Shape, b: Shape, resolve: Resolve, depth: int) -> bool:
    return any(
        are_disjoint(left, right, resolve, depth + 1)
        for name in a.required | b.required
        for left in a.properties.get(name, [])
        for right in b.properties.get(name, [])
    )


def finite_values(node: Node, resolve: Resolve, depth: int = 0) -> list[Any] | None:
    """All instances of a schema that has few, or more than those; None if they cannot be counted."""
    if isinstance(node, bool) or depth > _MAX_DEPTH:
        return [] if node is False else None
    shape = shape_of(node, resolve)
    if shape.constants is not None:
        return list({value_key(value): value for value in shape.constants}.values())
    if shape.types <= {"null", "boolean"}:
        return [None] * ("null" in shape.types) + [False, True] * ("boolean" in shape.types)
    for union in shape.unions:
        found = [finite_values(option, resolve, depth + 1) for option in union]
        if all(values is not None for values in found):
            values = [value for options in found for value in options or []]
            return list({value_key(value): value for value in values}.values())
    return None


def value_key(value: object) -> str:
    """A text that is the same for values that JSON Schema holds to be equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(entry) for entry in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in cast("Schema", value).items()}
    return value


def _keys(values: tuple[Any, ...]) -> set[str]:
    return set(map(value_key, values))


def _types_of_value(value: object) -> frozenset[str]:
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        return frozenset({"number", "integer"})
    return frozenset(
        {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}
    )
