"""Keywords of objects as alternatives: counts of properties, their names, what one requires of others."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Final

from headrace.grammar.schema.arrays import others
from headrace.grammar.schema.keywords import Node, Schema, Unsupported
from headrace.grammar.schema.negation import any_of
from headrace.grammar.schema.shape import Resolve, conjuncts, shape_of
from headrace.grammar.schema.strings import pattern_of

MAX_COUNTED: Final = 6
"""Optional properties of which every subset becomes an alternative."""
_MAX_CHOICES: Final = 64


def dependent(node: Schema) -> list[Node]:
    """`dependentRequired` and `dependentSchemas`: a property is absent, or what it asks for holds."""
    found: list[Node] = []
    for name, names in node.get("dependentRequired", {}).items():
        present: Node = {"required": [name, *(other for other in names if other != name)]}
        found.append(_if_present(node, name, present))
    for name, entry in node.get("dependentSchemas", {}).items():
        found.append(_if_present(node, name, {"required": [name], "allOf": [entry]}))
    return found


def _if_present(node: Schema, name: str, present: Schema) -> Node:
    absent: Node = {"type": "object", "properties": {name: False}}
    return any_of([*others(node, "object"), absent, {"type": "object", **present}])


def named(node: Schema, resolve: Resolve, at: str) -> Node:
    """`propertyNames` as properties and patterns of properties."""
    names: Node = node["propertyNames"]
    if names is True or names == {}:
        return True
    if isinstance(names, dict) and "string" in (shape := shape_of(names, resolve)).types:
        patterns: list[str] = []
        for part in conjuncts(names, resolve):
            odd = sorted(part.keys() & {"not", "if", "anyOf", "oneOf"})
            if odd:
                raise Unsupported(odd[0], f"{at}/propertyNames", "is not supported there")
            patterns += pattern_of(part, at)
        if shape.constants is not None:
            if patterns:
                raise Unsupported("propertyNames", at, "has a pattern beside its constants: use one of them")
            listed = [name for name in shape.constants if isinstance(name, str)]
            return {"properties": dict.fromkeys(listed, True), "additionalProperties": False}
        if len(patterns) > 1:
            raise Unsupported("propertyNames", at, "has more than a pattern, a format, or limits of length")
        return {"patternProperties": {patterns[0]: True}, "additionalProperties": False} if patterns else True
    return {"properties": {}, "additionalProperties": False}


def is_counted(node: Schema) -> bool:
    """True if properties are to be counted of which some may be absent."""
    least, most = node.get("minProperties", 0), node.get("maxProperties")
    return bool(_optional(node)) and (most is not None or least > len(set(node.get("required", []))))


def _optional(node: Schema) -> list[str]:
    required = set(node.get("required", []))
    entries: Schema = node.get("properties", {})
    return [name for name, entry in entries.items() if name not in required and entry is not False]


def counted(node: Schema, at: str) -> Node:
    """`minProperties` and `maxProperties` of a schema: which of the optional properties are there."""
    least, most = node.get("minProperties", 0), node.get("maxProperties")
    required: list[str] = list(dict.fromkeys(node.get("required", [])))
    optional = _optional(node)
    sizes = range(len(optional) + 1)
    if len(optional) > MAX_COUNTED:
        missing: int = max(least - len(required), 0)
        if most is not None or comb(len(optional), missing) > _MAX_CHOICES:
            raise Unsupported(
                "maxProperties" if most is not None else "minProperties",
                at,
                f"is supported with at most {MAX_COUNTED} optional properties, these are {len(optional)}",
            )
        chosen: list[Node] = []
        for some in combinations(optional, missing):
            chosen.append({"type": "object", "required": [*required, *some]})
        return any_of([*others(node, "object"), *chosen])
    closed = node.get("additionalProperties") is False and "patternProperties" not in node
    found: list[Node] = []
    for size in sizes:
        count = len(required) + size
        # A grammar cannot see that a name comes twice, so it must not be the one to count names.
        if least > count + (0 if closed else 1) or (most is not None and count > most):
            continue
        for some in combinations(optional, size):
            absent = {name: False for name in optional if name not in some}
            one: Schema = {"type": "object", "required": [*required, *some], "properties": absent}
            if least > count:
                one["minProperties"] = least
            if most is not None:
                one["maxProperties"] = most
            found.append(one)
    return any_of([*others(node, "object"), *found])


def check_count(node: Schema, at: str) -> None:
    """Refuse more names than `required` lists and one: names that come twice would count twice."""
    least, names = node.get("minProperties", 0), set(node.get("required", []))
    if least > len(names) + 1:
        raise Unsupported(
            "minProperties",
            at,
            f"is {least}: at most one more than is `required` ({len(names)}) is supported",
        )
