"""Aggregates that models answer, in the tree of a statement: a call reads the texts of its group as one list.

Runs in the process of the statement. The list has an order of its own, so that the value of a group does not
depend on the order in which threads read its rows.
"""

from __future__ import annotations

from headrace.data.dialect import DuckDialect
from headrace.data.guard import Node, StatementRefused


def gather(node: Node, function: str, dialect: DuckDialect) -> None:
    """Put the list of the group's texts, as JSON, in the place of the first argument.

    The texts are in the order of the call's ORDER BY; those that are equal by it, and all where there is
    none, by their bytes. DISTINCT and FILTER are the list's. NULL is left to the operator.
    """
    place = next((number for number, one in enumerate(node["children"]) if not one.get("alias")), None)
    if node.get("class") != "FUNCTION" or place is None:
        raise StatementRefused(f"{function}() is an aggregate of a text, and takes no OVER")
    text = dialect.as_text(node["children"][place])
    listed = dialect.expression("list(x ORDER BY y)")
    [by_text] = listed["order_bys"]["orders"]
    by_text["expression"] = text  # the same object: calls within it are put in place once
    given: Node = node.get("order_bys") or {}
    listed["children"] = [text]
    listed["order_bys"]["orders"] = [*given.get("orders", []), by_text]
    listed |= {"distinct": node.get("distinct", False), "filter": node.get("filter")}
    written = dialect.expression("to_json(x)")
    written["children"] = [listed]
    node["children"][place] = written
    node |= {"distinct": False, "filter": None, "order_bys": {"type": "ORDER_MODIFIER", "orders": []}}
