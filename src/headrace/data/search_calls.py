"""Searches in the tree of a statement: found, answered by rows, and put in place as tables.

Runs in the process of the statement, after the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.data.ai_calls import bind, nodes_of
from headrace.data.dialect import DuckDialect
from headrace.data.guard import SEARCHES, Node, StatementRefused
from headrace.data.questions import MAX_SEARCHES, FindHits, encode_question
from headrace.data.source import literal, quoted
from headrace.isolation.fork_server import Ask
from headrace.struct_types import thread_safe

PREFIX = "__search_"
"""Of the names of tables that stand in the place of searches; a statement cannot name one itself."""
COLUMNS: Mapping[str, str] = {
    "dataset": "VARCHAR",
    "key": "VARCHAR",
    "title": "VARCHAR",
    "text": "VARCHAR",
    "_score": "DOUBLE",
    "start_char": "BIGINT",
    "end_char": "BIGINT",
    "bm25_rank": "BIGINT",
    "vector_rank": "BIGINT",
    "rerank_score": "DOUBLE",
    "attributes": "MAP(VARCHAR, VARCHAR)",
}
"""Of such a table, with their types."""


def has_searches(tree: Node) -> bool:
    """Whether a statement searches."""
    return any(_searched(node) for node in nodes_of(tree))


def put_searches(
    tree: Node,
    dialect: DuckDialect,
    parameters: Sequence[object],
    evaluate: Callable[[list[Node]], list[Any]],
) -> list[FindHits]:
    """The searches of a statement, equal ones once. Tables stand in their place in the tree, whose parameters
    are constants afterwards. StatementRefused for what is none."""
    bind(tree, dialect, parameters)
    found: dict[str, FindHits] = {}
    names: dict[str, str] = {}
    for node in [one for one in nodes_of(tree) if _searched(one)]:
        search = _search(node["function"], evaluate)
        key = str(encode_question(search))
        name = names.setdefault(key, f"{PREFIX}{len(names)}")
        found[name] = search
        alias = node["alias"] or node["function"]["function_name"]
        kept = {part: node[part] for part in ("sample", "query_location", "column_name_alias")}
        node.clear()
        node.update(dialect.table(name) | kept | {"alias": alias})
    if len(found) > MAX_SEARCHES:
        raise StatementRefused(f"there are {len(found)} searches, at most {MAX_SEARCHES} may be")
    return list(found.values())


def make_tables(connection: Any, searches: Sequence[FindHits], ask: Ask | None) -> None:
    """Make the tables of searches. Without `ask` they are empty: the statement is to be planned only."""
    shape = literal(msgspec.json.encode([COLUMNS]).decode())
    columns = ", ".join(f"r.{quoted(name)}" for name in COLUMNS)
    for number, search in enumerate(searches):
        rows = "[]" if ask is None else ask(encode_question(search)).decode()
        connection.execute(
            f"CREATE TABLE {PREFIX}{number} AS SELECT {columns} FROM"
            f" (SELECT unnest(from_json($1, {shape})) AS r)",
            [rows],
        )


def _searched(node: Node) -> bool:
    function: Node = node.get("function") or {}
    return node.get("type") == "TABLE_FUNCTION" and function.get("function_name", "").lower() in SEARCHES


def _search(function: Node, evaluate: Callable[[list[Node]], list[Any]]) -> FindHits:
    name = function["function_name"].lower()
    given: list[Node] = []
    options: dict[str, Node] = {}
    for child in function["children"]:
        left: Node = child.get("left") or {}
        if child.get("alias"):
            options[child["alias"].lower()] = child
        elif child.get("type") == "COMPARE_EQUAL" and left.get("class") == "COLUMN_REF":  # name = value
            options[str(left["column_names"][-1]).lower()] = child["right"]
        else:
            given.append(child)
    form = f"{name}(index, text, top := 10, filter := '…', rerank := '…')"
    if not 2 <= len(given) <= 3:
        raise StatementRefused(f"{name}() has {len(given)} arguments: write {form}")
    index = given[0].get("column_names")
    constants = [given[1], *given[2:], *options.values()] if index else [*given, *options.values()]
    if any(node.get("class") == "COLUMN_REF" for one in constants for node in nodes_of(one)):
        raise StatementRefused(f"{name}() is the same for all rows: its arguments name no columns")
    values = evaluate(constants)
    if index:
        values.insert(0, index[-1])
    positional = dict(zip(("index", "text", "top"), values[: len(given)], strict=False))
    positional |= dict(zip(options, values[len(given) :], strict=True))
    try:
        return msgspec.convert({"function": name, **positional}, thread_safe(FindHits), strict=True)
    except msgspec.ValidationError as error:
        raise StatementRefused(f"{name}(): {error}: write {form}") from None
