"""`unevaluatedProperties` and `unevaluatedItems`: case by case, which parts of an instance are evaluated."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from msgspec import Struct

from headrace.grammar.schema.keywords import Node, Schema, Unsupported
from headrace.grammar.schema.negation import any_of, complement
from headrace.grammar.schema.shape import Resolve

MAX_CASES: Final = 64
_MAX_SUBSETS: Final = 4
"""With more alternatives in an `anyOf` they count one at a time: some instances are not generated then."""
_MAX_DEPTH: Final = 16
_APPLIED: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "dependentSchemas"}
    | {"unevaluatedProperties", "unevaluatedItems"}
)


class Evaluated(Struct, frozen=True):
    """Properties by name and pattern; items: the first `count`, and those that match one of `contained`."""

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    every_property: bool = False
    count: int = 0
    every_item: bool = False
    contained: tuple[int, ...] = ()
    """Indices of schemas, see `Cases.contained`."""

    def joined(self, other: Evaluated) -> Evaluated:
        """What one or the other evaluates."""
        return Evaluated(
            tuple(dict.fromkeys((*self.names, *other.names))),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            self.every_property or other.every_property,
            max(self.count, other.count),
            self.every_item or other.every_item,
            tuple(dict.fromkeys((*self.contained, *other.contained))),
        )


Case = tuple[tuple[Node, ...], Evaluated]
"""Schemas that hold together, and what they evaluate then."""


class Cases:
    """Splits schemas into cases. All cases of a schema together hold where it does, or less often."""

    def __init__(self, resolve: Resolve, at: str) -> None:
        self._resolve, self._at = resolve, at
        self.contained: list[Node] = []

    def of(self, node: Node, depth: int = 0) -> list[Case]:
        """The cases of a schema, with what it says of unevaluated parts applied."""
        if isinstance(node, bool):
            return [((node,), Evaluated())] if node else []
        if depth > _MAX_DEPTH:
            raise Unsupported(
                "unevaluatedProperties", self._at, "is not supported with references in circles"
            )
        own = {key: value for key, value in node.items() if key not in _APPLIED}
        cases: list[Case] = [((own,) if own else (), self._own(node))]
        for group in self._groups(node, depth + 1):
            cases = self._product(cases, group)
        if "unevaluatedProperties" in node:
            cases = [self._closed_object(case, node["unevaluatedProperties"]) for case in cases]
        if "unevaluatedItems" in node:
            cases = [self._closed_array(case, node["unevaluatedItems"]) for case in cases]
        return cases

    def _own(self, node: Schema) -> Evaluated:
        contained: tuple[int, ...] = ()
        if "contains" in node:
            contained = (len(self.contained),)
            self.contained.append(node["contains"])
        return Evaluated(
            tuple(node.get("properties", {})),
            tuple(node.get("patternProperties", {})),
            "additionalProperties" in node,
            len(node.get("prefixItems", [])),
            "items" in node,
            contained,
        )

    def _groups(self, node: Schema, depth: int) -> list[list[Case]]:
        """For each keyword that applies schemas in place: its cases."""
        groups = [self.of(entry, depth) for entry in node.get("allOf", [])]
        if "$ref" in node:
            groups.append(self._grouped({"$ref": node["$ref"]}, self.of(self._resolve(node["$ref"]), depth)))
        if "anyOf" in node:
            groups.append(self._any(node["anyOf"], depth))
        if "oneOf" in node:
            whole: Node = {"oneOf": node["oneOf"]}
            found = [case for entry in node["oneOf"] for case in self.of(entry, depth)]
            groups.append([((whole, *conditions), evaluated) for conditions, evaluated in found])
        if "if" in node:
            groups.append(self._branches(node, depth))
        for name, entry in node.get("dependentSchemas", {}).items():
            absent: Case = (({"properties": {name: False}},), Evaluated())
            present: Node = {"type": "object", "required": [name]}
            found = [((present, *conditions), evaluated) for conditions, evaluated in self.of(entry, depth)]
            groups.append([absent, *found])
        return groups

    def _any(self, entries: list[Node], depth: int) -> list[Case]:
        each = [self._grouped(entry, self.of(entry, depth)) for entry in entries]
        sizes = range(1, len(each) + 1) if len(each) <= _MAX_SUBSETS else (1,)
        found: list[Case] = []
        for size in sizes:
            for chosen in combinations(each, size):
                cases: list[Case] = [((), Evaluated())]
                for group in chosen:
                    cases = self._product(cases, group)
                found += cases
        return _merged(found)

    def _branches(self, node: Schema, depth: int) -> list[Case]:
        passed = self._product(self.of(node["if"], depth), self.of(node.get("then", True), depth))
        failed: list[Case] = [((complement(node["if"]),), Evaluated())]
        return passed + self._product(failed, self.of(node.get("else", True), depth))

    def _product(self, cases: list[Case], group: list[Case]) -> list[Case]:
        if len(cases) * len(group) > MAX_CASES:
            raise Unsupported(
                "unevaluatedProperties", self._at, f"has more than {MAX_CASES} cases of what is evaluated"
            )
        return [
            ((*conditions, *more), evaluated.joined(other))
            for conditions, evaluated in cases
            for more, other in group
        ]

    @staticmethod
    def _grouped(whole: Node, cases: list[Case]) -> list[Case]:
        """One case, where all evaluate the same: its condition is then the schema itself."""
        if len({evaluated for _, evaluated in cases}) != 1:
            return cases
        return [((whole,), cases[0][1])]

    @staticmethod
    def _closed_object(case: Case, rest: Node) -> Case:
        conditions, evaluated = case
        if evaluated.every_property or rest is True:
            return conditions, evaluated.joined(Evaluated(every_property=True))
        closing: Schema = {"properties": dict.fromkeys(evaluated.names, True), "additionalProperties": rest}
        if evaluated.patterns:
            closing["patternProperties"] = dict.fromkeys(evaluated.patterns, True)
        return (*conditions, closing), evaluated.joined(Evaluated(every_property=True))

    def _closed_array(self, case: Case, rest: Node) -> Case:
        conditions, evaluated = case
        if evaluated.every_item or rest is True:
            return conditions, evaluated.joined(Evaluated(every_item=True))
        options = [rest, *(self.contained[index] for index in evaluated.contained)]
        closing: Schema = {"items": any_of(options)}
        if evaluated.count:
            closing["prefixItems"] = [True] * evaluated.count
        return (*conditions, closing), evaluated.joined(Evaluated(every_item=True))


def with_unevaluated(node: Schema, resolve: Resolve, at: str) -> Node:
    """The same schema without unevaluated parts in it. Raises Unsupported."""
    found = Cases(resolve, at).of(node)
    return any_of([_all_of(conditions) for conditions, _ in found])


def _all_of(conditions: tuple[Node, ...]) -> Node:
    return conditions[0] if len(conditions) == 1 else {"allOf": list(conditions)} if conditions else True


def _merged(cases: list[Case]) -> list[Case]:
    """One case for each set of evaluated parts."""
    groups: dict[Evaluated, list[Node]] = {}
    for conditions, evaluated in cases:
        groups.setdefault(evaluated, []).append(_all_of(conditions))
    return [((any_of(conditions),), evaluated) for evaluated, conditions in groups.items()]
