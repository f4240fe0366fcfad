"""Calls of functions of models in the tree of a statement: found, and replaced by functions of the
connection.

Runs in the process of the statement, after the guard.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from typing import Any, cast

import msgspec

from headrace.data.aggregates import gather
from headrace.data.dialect import DuckDialect
from headrace.data.function_names import FUNCTIONS
from headrace.data.guard import Node, StatementRefused
from headrace.data.questions import MAX_ARGUMENTS, MAX_CALLS, Argument, CallSite, CallType, Constant

PREFIX = "__ai_"
"""Of the names of functions that stand in the place of calls; a statement cannot name one itself."""
_VARIES = frozenset(
    {"COLUMN_REF", "SUBQUERY", "STAR", "WINDOW", "LAMBDA", "LAMBDA_REF", "POSITIONAL_REFERENCE"}
)
_RANDOM = frozenset({"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7"})


class FoundCall(msgspec.Struct):
    """A call; equal ones are one. `nodes` are its places, `arguments` those of the first."""

    name: str
    function: str
    arguments: list[Node]
    options: dict[str, Node]
    nodes: list[Node]
    type: CallType | None = None

    @property
    def varying(self) -> list[Node]:
        """The arguments that are columns of its rows."""
        assert self.type is not None
        return [self.arguments[place] for place in self.type.varying]


def has_calls(tree: Node) -> bool:
    """Whether a statement calls a function of models."""
    return any(_called(node) is not None for node in nodes_of(tree))


def nodes_of(value: Any) -> Iterator[Node]:
    """Every object within a tree, what is within it before it."""
    if isinstance(value, dict):
        node = cast("Node", value)
        for one in node.values():
            yield from nodes_of(one)
        yield node
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from nodes_of(one)


def find_calls(tree: Node, dialect: DuckDialect, parameters: Sequence[object]) -> list[FoundCall]:
    """The calls of a statement, inner ones first. Their names are in the tree in their place, and parameters
    are constants. StatementRefused for a call in a place where none may be."""
    _name_columns(tree, dialect)
    bind(tree, dialect, parameters)
    found: dict[str, FoundCall] = {}
    for node in nodes_of(tree):
        function = _called(node)
        if function is None:
            continue
        if FUNCTIONS[function].aggregates:
            gather(node, function, dialect)
        _check_scalar(node, function)
        arguments = [one for one in node["children"] if not one.get("alias")]
        options = {one["alias"].lower(): one for one in node["children"] if one.get("alias")}
        if len(arguments) > MAX_ARGUMENTS:
            raise StatementRefused(
                f"{function}() has {len(arguments)} arguments, at most {MAX_ARGUMENTS} may be"
            )
        key = json.dumps([function, _plain(arguments), _plain(options)], sort_keys=True)
        call = found.setdefault(key, FoundCall(f"{PREFIX}{len(found)}", function, arguments, options, []))
        call.nodes.append(node)
        node["function_name"] = call.name
    if len(found) > MAX_CALLS:
        raise StatementRefused(
            f"there are {len(found)} calls of functions of models, at most {MAX_CALLS} may be"
        )
    return list(found.values())


def sites_of(calls: Sequence[FoundCall], evaluate: Any, aggregates: Collection[str]) -> list[CallSite]:
    """The calls as they are declared; `evaluate` gives the values of constant expressions, `aggregates` are
    functions whose values depend on rows that they do not name."""
    constants = [
        one
        for call in calls
        for one in (*call.arguments, *call.options.values())
        if _is_constant(one, aggregates) or any(one is option for option in call.options.values())
    ]
    values = dict(zip(map(id, constants), evaluate(constants), strict=True)) if constants else {}
    return [
        CallSite(
            function=call.function,
            arguments=tuple(
                Argument(True, _plain_value(values[id(one)])) if id(one) in values else Argument(False)
                for one in call.arguments
            ),
            options={name: _option(values[id(one)]) for name, one in call.options.items()},
        )
        for call in calls
    ]


def put_in_place(calls: Sequence[FoundCall], types: Sequence[CallType], dialect: DuckDialect) -> None:
    """Give every place of a call the arguments that vary, as texts."""
    for call, of_type in zip(calls, types, strict=True):
        if any(not 0 <= place < len(call.arguments) for place in of_type.varying):
            raise StatementRefused(f"{call.function}() has too few arguments")
        call.type = of_type
        for node in call.nodes:
            given = [one for one in node["children"] if not one.get("alias")]
            node["children"] = [dialect.as_text(given[place]) for place in of_type.varying] or [
                dialect.constant("")
            ]


def _called(node: Node) -> str | None:
    """The function of models that an expression calls."""
    name = node.get("function_name")
    if not isinstance(name, str) or name.lower() not in FUNCTIONS:
        return None
    return name.lower()


def _check_scalar(node: Node, function: str) -> None:
    plain = node.get("class") == "FUNCTION" and not node.get("distinct") and node.get("filter") is None
    orders: Node = node.get("order_bys") or {}
    if not plain or orders.get("orders"):
        raise StatementRefused(f"{function}() takes no OVER, DISTINCT, FILTER or ORDER BY")


def _name_columns(tree: Node, dialect: DuckDialect) -> None:
    """Keep the names that columns have before calls are replaced."""
    for node in nodes_of(tree):
        for one in node.get("select_list") or ():
            inner = list(nodes_of(one))
            unnamed = not one.get("alias") and not any(part.get("class") == "STAR" for part in inner)
            if unnamed and any(_called(part) is not None for part in inner):
                one["alias"] = dialect.select([one]).removeprefix("SELECT ").strip()


def bind(tree: Node, dialect: DuckDialect, parameters: Sequence[object]) -> None:
    """Put constants in the place of parameters."""
    for node in nodes_of(tree):
        if node.get("class") != "PARAMETER":
            continue
        number = str(node.get("identifier", ""))
        if not number.isdecimal() or not 1 <= int(number) <= len(parameters):
            raise StatementRefused(f"there is no parameter {number[:20]!r}: {len(parameters)} were given")
        alias = node.get("alias", "")
        node.clear()
        node.update(dialect.constant(parameters[int(number) - 1]))
        node["alias"] = alias


def _is_constant(expression: Node, aggregates: Collection[str]) -> bool:
    """Whether it has the same value in every row."""
    return not any(
        node.get("class") in _VARIES
        or (called := str(node.get("function_name", "")).lower()) in _RANDOM
        or called in aggregates
        or str(node.get("function_name", "")).startswith(PREFIX)
        for node in nodes_of(expression)
    )


def _plain(value: Any) -> Any:
    """A tree without places in the text."""
    if isinstance(value, dict):
        entries = cast("Node", value).items()
        return {key: _plain(one) for key, one in entries if key not in ("query_location", "alias")}
    return [_plain(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def _option(value: Any) -> Constant:
    """0.5 is a DECIMAL in SQL; as an argument it would be a text."""
    return float(value) if isinstance(value, Decimal) else _plain_value(value)


def _plain_value(value: Any) -> Constant:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain_value(one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain_value(one) for one in cast("list[Any]", value)]
    return str(value)
