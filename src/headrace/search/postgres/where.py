"""Conditions on documents as SQL of PostgreSQL: over jsonb, with the meaning that they have in SQLite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal

from headrace.search.index import Attributes
from headrace.search.postgres.tables import shielded
from headrace.search.where import (
    KINDS,
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
    kind_of,
    sql_folded,
)

Given = str | Decimal | bool | list[str] | list[Decimal] | list[bool]
Sql = tuple[str, list[Given]]

_INFINITY = 10**400
"""More than every number of 64 bits; jsonb has no infinity."""
_SIGNS: Mapping[Operator, str] = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CASTS = {
    "string": ('COLLATE "C"', "text"),
    "number": ("::numeric", "numeric"),
    "boolean": ("::boolean", "boolean"),
}


def filters_of(attributes: Attributes) -> str:
    """Attributes as JSON that conditions are computed on."""
    return json.dumps({shielded(name): _json(value) for name, value in attributes.items()})


def sql_of(condition: Condition, column: str) -> Sql:
    """The condition over a column of jsonb, and its parameters. It is never NULL."""
    return sql_folded(condition, lambda leaf: _leaf(leaf, column))


def _leaf(leaf: Leaf, column: str) -> Sql:
    match leaf:
        case Presence(name, there):
            return f"(({column} -> %s::text) IS {'NOT ' if there else ''}NULL)", [_name(name)]
        case Truth(name):
            return f"(coalesce({column} -> %s::text = 'true'::jsonb, false))", [_name(name)]
        case Membership(name, values):
            return _membership(column, name, values)
        case Comparison(name, operator, value):
            kind = kind_of(value)
            cast, given = _CASTS[kind]
            test = f"(({column} ->> %s::text) {cast} {_SIGNS[operator]} %s::{given})"
            return _typed(column, name, kind, test, [_given(value)], otherwise=operator == "!=")


def _membership(column: str, name: str, values: tuple[Value, ...]) -> Sql:
    found, parameters = list[str](), list[Given]()
    for kind in KINDS:
        own = [_given(value) for value in values if kind_of(value) == kind]
        if not own:
            continue
        cast, given = _CASTS[kind]
        test = f"(({column} ->> %s::text) {cast} = ANY (%s::{given}[]))"
        text, more = _typed(column, name, kind, test, [own], otherwise=False)  # pyright: ignore[reportArgumentType]  (of one kind)
        found.append(text)
        parameters += more
    return f"({' OR '.join(found)})", parameters


def _typed(column: str, name: str, kind: str, test: str, values: list[Given], *, otherwise: bool) -> Sql:
    """A test of values of one kind. CASE alone has PostgreSQL look at the kind first."""
    rest = "true" if otherwise else "false"
    sql = f"(CASE WHEN jsonb_typeof({column} -> %s::text) = '{kind}' THEN {test} ELSE {rest} END)"
    return sql, [_name(name), _name(name), *values]


def _given(value: Value) -> str | Decimal | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return shielded(value)
    found = _json(value)
    return Decimal(found if isinstance(found, int) else repr(found))


def _json(value: Value) -> Value | None:
    """A value as jsonb takes it: whole numbers beyond 64 bits are floats, as in SQLite."""
    if isinstance(value, str):
        return shielded(value)
    value = bounded(value)
    if isinstance(value, int):
        return value
    assert isinstance(value, float)
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else int(math.copysign(1, value)) * _INFINITY


def _name(name: str) -> str:
    return shielded(checked_attribute(name))
