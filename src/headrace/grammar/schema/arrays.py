"""`contains` and `uniqueItems` as alternatives of arrays with fixed beginnings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb
from typing import Any, Final

from headrace.grammar.schema.keywords import Node, Schema, Unsupported, types_of
from headrace.grammar.schema.negation import FIRST_CONTAINED, any_of, complement, of_types
from headrace.grammar.schema.shape import MAX_COMPARED, Resolve, all_disjoint, finite_values, value_key

CONTAINED_AMONG: Final = 8
"""Where an array has no `maxItems`, what it must contain comes among its first items."""
MAX_ALTERNATIVES: Final = 400


def others(node: Schema, kind: str) -> list[Node]:
    """What instances of another type than `kind` match."""
    return of_types(types_of(node) - {kind})


def contained(node: Schema, at: str) -> Node:
    """`contains` with `minContains` and `maxContains` of a schema: which items match it."""
    wanted, least, most = node["contains"], node.get("minContains", 1), node.get("maxContains")
    if least == 0 and most is None:
        return True
    first = node.get(FIRST_CONTAINED, 0)
    length = node.get("maxItems", first + max(CONTAINED_AMONG, least))
    sizes = range(least, (least if most is None else most) + 1)
    while length > first + max(least, 1) and sum(comb(length - first, size) for size in sizes) > 64:
        length -= 1
    if sum(comb(max(length - first, 0), size) for size in sizes) > 64:
        raise Unsupported("minContains", at, "asks for too many items: leave it out")
    found = [
        _with_contained(wanted, places, None if most is None else complement(wanted))
        for size in sizes
        for places in combinations(range(first, length), size)
    ]
    return any_of([*others(node, "array"), *found])


def _with_contained(wanted: Node, places: tuple[int, ...], other: Node | None) -> Node:
    """Arrays with items that match at these places, and elsewhere match `other`, or anything."""
    size = places[-1] + 1 if places else 0
    filler: Node = True if other is None else other
    array: Schema = {"type": "array", "minItems": size}
    if size:
        array["prefixItems"] = [wanted if place in places else filler for place in range(size)]
    if other is not None:
        array["items"] = other
    return array


def unique(node: Schema, resolve: Resolve, at: str) -> Node:
    """`uniqueItems` of a schema: arrays whose items differ, one by one."""
    first, rest = node.get("prefixItems", []), node.get("items", True)
    longest = node.get("maxItems")
    if longest is None and rest is False:
        longest = len(first)
    fill = 0 if longest is None else min(max(longest - len(first), 0), MAX_ALTERNATIVES)
    places: list[Node] = [*first, *[rest] * fill][:longest]
    alike = max(fill, 0) > 1  # the same schema twice: it overlaps itself
    if longest is not None and not alike and len(places) <= MAX_COMPARED and all_disjoint(places, resolve):
        return True
    rest_values = finite_values(rest, resolve)
    each = [finite_values(place, resolve) for place in places[: len(first)]]
    each += [rest_values] * (len(rest_values or []) if longest is None else fill)
    if any(values is None for values in each) or (longest is None and rest_values is None):
        raise Unsupported(
            "uniqueItems", at, "is supported where items have few values, such as `enum` or booleans"
        )
    arrays = list(islice(_distinct([values or [] for values in each]), MAX_ALTERNATIVES + 1))
    if len(arrays) > MAX_ALTERNATIVES:
        raise Unsupported("uniqueItems", at, f"admits more than {MAX_ALTERNATIVES} arrays: bound `maxItems`")
    return any_of([*others(node, "array"), *(_exactly(array) for array in arrays)])


def _distinct(each: list[list[Any]]) -> Iterator[list[Any]]:
    """Lists of different values, one of each in its order; the shorter ones first."""
    made: list[tuple[list[Any], frozenset[str]]] = [([], frozenset())]
    yield []
    for values in each:
        made = [
            ([*chosen, value], used | {value_key(value)})
            for chosen, used in islice(made, MAX_ALTERNATIVES + 1)
            for value in values
            if value_key(value) not in used
        ]
        yield from (chosen for chosen, _ in made)


def _exactly(values: list[Any]) -> Node:
    count = len(values)
    array: Schema = {"type": "array", "minItems": count, "maxItems": count}
    return array | ({"prefixItems": [{"const": value} for value in values]} if values else {})
