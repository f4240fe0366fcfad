"""Conditions on documents as filters of Qdrant, with the meaning that they have in SQLite.

Qdrant compares texts for equality only, and numbers in 64-bit floats. So an attribute is kept as a tag of its
name, type and value, and as whole numbers below 2^53 that are in the order of the values.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence

from qdrant_client import models

from headrace.search.index import Attributes
from headrace.search.qdrant.records import one_of, within
from headrace.search.where import (
    Comparison,
    Condition,
    Leaf,
    Membership,
    Operator,
    Presence,
    Truth,
    Value,
    bounded,
    checked_attribute,
    folded,
    kind_of,
)

PARTS = 8
_BYTES = 6  # of a text in a part
_ORDERED_BYTES = PARTS * _BYTES
_MAX_TAG = 200
_LARGEST = struct.unpack("<d", struct.pack("<Q", 0x7FEFFFFFFFFFFFFF))[0]

Refine = Callable[[models.Condition, str, Operator, str], Sequence[int]]
"""The documents among those of a condition whose attribute of that name compares so with a text."""


def filters_of(attributes: Attributes) -> dict[str, list[object]]:
    """The fields of a point that conditions are computed on."""
    tags, ordered = list[object](), list[object]()
    for name, value in attributes.items():
        tags.append(_tag(name))
        if isinstance(value, float) and math.isnan(value):
            continue  # JSON has it as null: it is there, and compares with nothing
        tags.append(_tag(name, value))
        parts = _parts(value)
        ordered.append(
            {
                "name": _tag(name, kind_of(value), "order"),
                **{f"p{place}": one for place, one in enumerate(parts)},
            }
        )
    return {"tags": tags, "ordered": ordered}


def filter_of(condition: Condition, refine: Refine) -> models.Filter:
    """The condition on points with the fields of `filters_of`."""

    def joined(every: bool, parts: list[models.Filter]) -> models.Filter:
        return models.Filter(must=list(parts)) if every else models.Filter(should=list(parts))

    return folded(
        condition, joined, lambda part: models.Filter(must_not=[part]), lambda leaf: _leaf(leaf, refine)
    )


def has_attribute(name: str) -> models.FieldCondition:
    """That a document has an attribute of that name."""
    return one_of("tags", _tag(name))


def compares(value: object, operator: Operator, text: str) -> bool:
    """Whether an attribute's value is a text that compares so with another."""
    if not isinstance(value, str):
        return False
    one, other = value.encode(), text.encode()
    return (
        (one < other and operator in ("<", "<="))
        or (one > other and operator in (">", ">="))
        or (one == other and operator in ("<=", ">="))
    )


def _leaf(leaf: Leaf, refine: Refine) -> models.Filter:
    checked_attribute(leaf.name)
    match leaf:
        case Presence(name, there):
            found: list[models.Condition] = [has_attribute(name)]
            return models.Filter(must=found) if there else models.Filter(must_not=found)
        case Truth(name):
            return models.Filter(must=[one_of("tags", _tag(name, True))])
        case Membership(name, values):
            return models.Filter(must=[one_of("tags", *(_tag(name, value) for value in values))])
        case Comparison(name, "=", value):
            return models.Filter(must=[one_of("tags", _tag(name, value))])
        case Comparison(name, "!=", value):
            return models.Filter(must_not=[one_of("tags", _tag(name, value))])
        case Comparison(name, operator, value):
            return _in_order(name, operator, value, refine)


def _in_order(name: str, operator: Operator, value: Value, refine: Refine) -> models.Filter:
    """Attributes before or after a value, by their parts one after another."""
    parts = _parts(value)
    same: list[models.Condition] = []
    ways: list[models.Condition] = []
    bound = "lt" if operator in ("<", "<=") else "gt"
    for place, part in enumerate(parts):
        ways.append(models.Filter(must=[*same, within(f"p{place}", **{bound: part})]))
        same.append(within(f"p{place}", gte=part, lte=part))
    key = one_of("name", _tag(name, kind_of(value), "order"))
    if isinstance(value, str) and parts[-1] % 257:  # texts that begin alike are told apart where they are
        begins = models.Filter(must=[key, *same])
        alike = models.NestedCondition(nested=models.Nested(key="ordered", filter=begins))
        numbers = refine(alike, name, operator, value)
        ordered: list[models.Condition] = [_nested(key, ways)]
        if numbers:
            ordered.append(one_of("document", *numbers))
        return models.Filter(should=ordered)
    if operator in ("<=", ">="):
        ways.append(models.Filter(must=same))
    return models.Filter(must=[_nested(key, ways)])


def _nested(key: models.FieldCondition, ways: list[models.Condition]) -> models.NestedCondition:
    inner = models.Filter(must=[key, models.Filter(should=ways)])
    return models.NestedCondition(nested=models.Nested(key="ordered", filter=inner))


def _parts(value: Value) -> list[int]:
    """Whole numbers below 2^53 in the order of values of one type."""
    if isinstance(value, bool):
        return [int(value)]
    if isinstance(value, str):
        data = value.encode()[:_ORDERED_BYTES]
        return [_number(data[start : start + _BYTES]) for start in range(0, _ORDERED_BYTES, _BYTES)]
    value = bounded(value)
    assert isinstance(value, int | float)
    near = float(value)
    rest = 0
    if math.isinf(near):
        rest, near = (1, _LARGEST) if near > 0 else (-1, -_LARGEST)
    elif isinstance(value, int):
        rest = value - int(near)
    (bits,) = struct.unpack("<Q", struct.pack("<d", near + 0.0))
    bits = 2**64 - 1 - bits if bits >> 63 else bits + 2**63
    return [bits >> 32, bits & 0xFFFFFFFF, rest]


def _number(data: bytes) -> int:
    """A part of a text: each byte counts from 1, what is not there 0."""
    found = 0
    for place in range(_BYTES):
        found = found * 257 + (data[place] + 1 if place < len(data) else 0)
    return found


def _tag(name: str, *values: Value) -> str:
    """A name, or a name and a value; what is long stands for itself by its digest."""
    given: list[object] = [name]
    for value in values:
        given.append(_same(value))
    text = json.dumps(given)
    if len(text) <= _MAX_TAG:
        return text
    return "#" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _same(value: Value) -> Value:
    """Equal numbers in one form, which 1.0 and 1 are not of."""
    if isinstance(value, str | bool):
        return value
    value = bounded(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and -(2**63) <= value < 2**63:
        return int(value)
    return value
