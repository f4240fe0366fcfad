"""What a statement will ask of models, as statements that run before it.

A hint gives, for one call, the different rows of arguments that the statement will need, so that they are
computed together. Where it cannot be made exactly there is none, and the rows are computed as the statement
comes to them. A hint is never part of the answer: one that is wrong costs time.

Hints are made for calls of the outermost SELECT, where no CASE, OR, subquery or window decides whether they
are evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from typing import Any, cast

from msgspec import Struct

from headrace.data.ai_calls import PREFIX, FoundCall, nodes_of
from headrace.data.dialect import DuckDialect
from headrace.data.guard import Node

NO_PLAN = "the plan could not be made"
_DECIDES = frozenset({"CASE", "CONJUNCTION", "SUBQUERY", "LAMBDA", "WINDOW"})
_PLAIN_JOINS = frozenset({"REGULAR", "CROSS"})
_DECIDING_TYPES = frozenset({"OPERATOR_COALESCE", "OPERATOR_TRY"})


class Hint(Struct, frozen=True):
    """`sql` gives the rows of the call with that number in its last `width` columns. `wanted` is how many
    rows must pass where the call is a condition in front of a LIMIT; 0: all rows are needed. `exact`: no
    others can be needed."""

    call: int
    sql: str
    width: int
    wanted: int = 0
    exact: bool = True


class Plan(Struct, frozen=True):
    """Hints in the order in which they run, and of calls without one the reason."""

    hints: tuple[Hint, ...]
    without: dict[int, str]


def plan(
    tree: Node,
    calls: Sequence[FoundCall],
    dialect: DuckDialect,
    aggregates: Collection[str],
    count: Callable[[str], int] | None,
) -> Plan:
    """The hints of a statement whose calls were put in place. Where several conditions ask models, the
    statement gets an order of them, those with the fewest rows first: `a AND b` becomes `CASE WHEN a THEN b
    ELSE false END`, which passes the same rows.

    `count` gives the number of rows of a query. With None hints may not rely on values of earlier calls: rows
    that a condition might remove are among theirs, and they are not exact.
    """
    return _Planner(tree, calls, dialect, aggregates, count).plan()


class _Planner:
    def __init__(
        self,
        tree: Node,
        calls: Sequence[FoundCall],
        dialect: DuckDialect,
        aggregates: Collection[str],
        count: Callable[[str], int] | None,
    ) -> None:
        self._calls, self._dialect, self._count = calls, dialect, count
        self._hinted = deepcopy(tree)  # what hints are made of
        self._aggregates, self._known = aggregates, count is not None
        self._select: Node = tree["statements"][0]["node"]
        self._numbers = {call.name: number for number, call in enumerate(calls)}
        self._hints: dict[tuple[int, str], Hint] = {}
        self._without: dict[int, str] = {}

    def plan(self) -> Plan:
        select = self._select
        if select["type"] != "SELECT_NODE":
            return self._none("the statement is not one SELECT")
        joined = self._taken_from_joins(self._hinted["statements"][0]["node"]["from_table"])
        if _has_call(self._hinted["statements"][0]["node"]["from_table"]) or _has_call(select["cte_map"]):
            return self._none("a call is within FROM or WITH")
        if select["from_table"]["type"] == "EMPTY" or select.get("sample") is not None:
            return self._none("there are no rows to look ahead to")
        if _has_call(select.get("having")):
            return self._none("a call is within HAVING")
        self._conjuncts = _conjuncts(select.get("where_clause"))
        self._dear = [*(one for one in self._conjuncts if _has_call(one)), *joined]
        self._cheap = [one for one in self._conjuncts if not _has_call(one)]
        modifiers = {one["type"]: one for one in select["modifiers"]}
        self._limit, self._order = modifiers.get("LIMIT_MODIFIER"), modifiers.get("ORDER_MODIFIER")
        self._is_distinct = "DISTINCT_MODIFIER" in modifiers
        self._is_cut = self._limit is not None or "LIMIT_PERCENT_MODIFIER" in modifiers
        self._is_grouped = bool(
            select["group_expressions"] or select["group_sets"] or select.get("having")
        ) or (self._aggregate(select["select_list"]))
        is_ordered = self._known and not joined and self._sort()
        for place, conjunct in enumerate(self._dear):
            self._of_condition(place, conjunct)
        self._of_rows()
        if is_ordered:
            self._write_order()
        found = {hint.call for hint in self._hints.values()}
        missing = dict.fromkeys(range(len(self._calls)), "a condition decides whether it is evaluated")
        without = {number: why for number, why in (missing | self._without).items() if number not in found}
        return Plan(tuple(self._hints.values()), without)

    def _none(self, reason: str) -> Plan:
        return Plan((), dict.fromkeys(range(len(self._calls)), reason))

    def _taken_from_joins(self, table: Node) -> list[Node]:
        """The conditions with calls of inner joins, taken out of them: in WHERE they pass the same rows."""
        if table["type"] != "JOIN" or table["join_type"] != "INNER" or table["ref_type"] not in _PLAIN_JOINS:
            return []
        found = [*self._taken_from_joins(table["left"]), *self._taken_from_joins(table["right"])]
        parts = _conjuncts(table.get("condition"))
        dear = [one for one in parts if _has_call(one)]
        if dear:
            cheap = [one for one in parts if not _has_call(one)]
            table["condition"] = self._all(cheap) or self._dialect.constant(True)
        return [*found, *dear]

    def _sort(self) -> bool:
        """Sort the dear conditions by the rows that they need; whether their order can be written."""
        if len(self._dear) < 2 or not all(_is_boolean(one, self._calls) for one in self._dear):
            return False
        self._dear.sort(key=self._weight)  # equal ones stay as they are
        return True

    def _weight(self, conjunct: Node) -> float:
        """How many rows a condition needs where all cheap ones hold."""
        assert self._count is not None
        nodes = list(self._always([conjunct]))
        if not nodes or any(_has_call(node["children"]) or self._max_rows(node) for node in nodes):
            return math.inf
        return sum(self._count(self._rows(node, self._cheap)) for node in nodes)

    def _write_order(self) -> None:
        *first, chain = self._dear
        for conjunct in reversed(first):
            case = self._dialect.expression("CASE WHEN a THEN b ELSE false END")
            case["case_checks"][0] |= {"when_expr": conjunct, "then_expr": chain}
            chain = case
        self._select["where_clause"] = self._all([*self._cheap, chain])

    def _of_condition(self, place: int, conjunct: Node) -> None:
        """Hints of the calls in a part of WHERE: rows that pass the cheap parts and the dear ones before."""
        kept = [*self._cheap, *(self._dear[:place] if self._known else ())]
        exact = self._known or not place
        is_streamed = self._is_cut and self._order is None and not self._is_grouped
        for node in self._always([conjunct]):
            if not is_streamed:
                self._add(node, self._rows(node, kept), exact=exact)
            elif node is not conjunct or not (wanted := self._wanted(node)):
                self._without[self._number(node)] = "LIMIT may end the statement before all rows are read"
            else:
                distinct = not self._known
                self._add(node, self._rows(node, kept, distinct=distinct), wanted=wanted, exact=self._known)

    def _of_rows(self) -> None:
        """Hints of calls outside of WHERE."""
        select = self._select
        ordered = [one["expression"] for one in self._order["orders"]] if self._order is not None else []
        parts = [*select["group_expressions"], *select["select_list"], *ordered]
        nodes = list(self._always(parts))
        kept = [*self._cheap, *(self._dear if self._known else ())]
        exact = self._known or not self._dear
        reason = self._reason_for_none(ordered)
        for node in nodes:
            if reason:
                self._without[self._number(node)] = reason
            elif self._aggregate(node["children"]):
                self._of_groups(node, kept, exact)
            elif self._is_cut:
                self._add(node, self._behind_columns(node, kept, _has_call), exact=exact)
            else:
                self._add(node, self._rows(node, kept), exact=exact)

    def _reason_for_none(self, ordered: Sequence[Node]) -> str:
        select = self._select
        if select.get("having") is not None or select.get("qualify") is not None:
            return "HAVING or QUALIFY decides which rows there are"
        if not self._is_cut:
            return ""
        if self._is_grouped or self._is_distinct:
            return "LIMIT decides which groups there are"
        if any(_has_call(one) or self._names_call(one) for one in ordered):
            return "the order depends on a call"
        return "" if self._limit is not None else "LIMIT is a percentage"

    def _names_call(self, expression: Node) -> bool:
        """Whether an expression of ORDER BY is the name or number of a column with a call."""
        for node in nodes_of(expression):
            if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
                name = node["column_names"][0].lower()
                if any(
                    _has_call(one) and one["alias"].lower() == name for one in self._select["select_list"]
                ):
                    return True
            if node.get("class") in ("CONSTANT", "STAR", "POSITIONAL_REFERENCE"):
                return True  # a number of a column, or all of them
        return False

    def _rows(self, node: Node, kept: Sequence[Node], *, distinct: bool = True) -> str:
        """The different rows of arguments where the conditions that are kept hold. Where their number has a
        bound, they come as they are read, and not when all are known."""
        tree, select = self._copy(kept)
        distinct = distinct and not self._max_rows(node)
        select |= {"select_list": deepcopy(node["children"]), "group_expressions": [], "group_sets": []}
        select |= {"having": None, "qualify": None, "aggregate_handling": "STANDARD_HANDLING"}
        select["modifiers"] = [{"type": "DISTINCT_MODIFIER", "distinct_on_targets": []}] if distinct else []
        return self._dialect.text(tree)

    def _of_groups(self, node: Node, kept: Sequence[Node], exact: bool) -> None:
        """The hint of a call that reads values of groups."""
        select = self._select
        keys = [one for one in select["select_list"] if not self._aggregate(one)]
        if not self._known and (_has_call(keys) or _has_call(select["group_expressions"])):
            self._without[self._number(node)] = "values of other calls decide which groups there are"
        else:
            self._add(node, self._behind_columns(node, kept, self._aggregate, modifiers=False), exact=exact)

    def _behind_columns(
        self, node: Node, kept: Sequence[Node], left_out: Callable[[Node], bool], *, modifiers: bool = True
    ) -> str:
        """The rows of arguments behind the other columns, by whose names and numbers they may be ordered or
        grouped. Columns that are `left_out` are NULL."""
        tree, select = self._copy(kept)
        nothing = self._dialect.constant(None)
        columns = [
            nothing | {"alias": one["alias"]} if left_out(one) else one for one in select["select_list"]
        ]
        select["select_list"] = [*columns, *deepcopy(node["children"])]
        if not modifiers:
            select["modifiers"] = []
        return self._dialect.text(tree)

    def _copy(self, kept: Sequence[Node]) -> tuple[Node, Node]:
        tree = deepcopy(self._hinted)
        select: Node = tree["statements"][0]["node"]
        select["where_clause"] = self._all(deepcopy(list(kept)))
        return tree, select

    def _all(self, conditions: list[Node]) -> Node | None:
        """Their conjunction; None of none."""
        if len(conditions) < 2:
            return conditions[0] if conditions else None
        both = self._dialect.expression("a AND b")
        both["children"] = conditions
        return both

    def _add(self, node: Node, sql: str, *, wanted: int = 0, exact: bool = True) -> None:
        number = self._number(node)
        of_type = self._calls[number].type
        assert of_type is not None
        if not of_type.varying:  # DuckDB computes a constant once
            return
        self._hints.setdefault((number, sql), Hint(number, sql, len(node["children"]), wanted, exact))

    def _wanted(self, node: Node) -> int:
        """Rows that LIMIT lets through, with those of OFFSET; 0 where that is not known, or where a row
        behind them would be seen elsewhere: by a window, or by the same call in another place. The order in
        which a join has its rows is not that of its hint."""
        select = self._select
        elsewhere = len(self._calls[self._number(node)].nodes) > 1 or len(self._dear) > 1
        windows = any(one.get("class") == "WINDOW" for one in nodes_of(select["select_list"]))
        is_joined = select["from_table"]["type"] == "JOIN"
        if self._limit is None or elsewhere or windows or is_joined:
            return 0
        found = 0
        for part in (self._limit.get("limit"), self._limit.get("offset")):
            constant: Node = {} if part is None else part.get("value") or {}
            value: object = 0 if part is None else constant.get("value")
            if not isinstance(value, int):
                return 0
            found += value
        return 0 if self._is_distinct or self._select.get("qualify") is not None else found

    def _max_rows(self, node: Node) -> int:
        of_type = self._calls[self._number(node)].type
        return 0 if of_type is None else of_type.max_rows

    def _number(self, node: Node) -> int:
        return self._numbers[node["function_name"]]

    def _aggregate(self, part: Any) -> bool:
        return any(str(node.get("function_name", "")).lower() in self._aggregates for node in nodes_of(part))

    def _always(self, expressions: Sequence[Node]) -> Iterator[Node]:
        """The calls that are evaluated in every row of the expressions, inner ones first."""
        for expression in expressions:
            for one in _always(expression):
                if not any(node.get("class") in ("SUBQUERY", "WINDOW") for node in nodes_of(one["children"])):
                    yield one


def _always(value: Any) -> Iterator[Node]:
    if isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _always(one)
    elif isinstance(value, dict):
        node = cast("Node", value)
        decides = node.get("class") in _DECIDES or str(node.get("type")) in _DECIDING_TYPES
        if not decides and node.get("filter") is None:
            for one in node.values():
                yield from _always(one)
            if _is_call(node):
                yield node


def _conjuncts(condition: Node | None) -> list[Node]:
    if condition is None:
        return []
    if condition.get("type") != "CONJUNCTION_AND":
        return [condition]
    return [part for one in condition["children"] for part in _conjuncts(one)]


def _is_boolean(expression: Node, calls: Sequence[FoundCall]) -> bool:
    """Whether it surely is BOOLEAN."""
    if _is_call(expression):
        name = expression["function_name"]
        return any(
            call.name == name and call.type is not None and call.type.type == "BOOLEAN" for call in calls
        )
    return expression.get("class") in ("COMPARISON", "CONJUNCTION", "BETWEEN")


def _has_call(part: Any) -> bool:
    return any(_is_call(node) for node in nodes_of(part))


def _is_call(node: Node) -> bool:
    return str(node.get("function_name", "")).startswith(PREFIX)
