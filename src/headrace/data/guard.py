"""What a statement may be: an allow-list over the tree of DuckDB's own parser.

DuckDB serializes SELECT statements only. Every node of the tree must be of a known kind, every relation a
dataset or a CTE in whose scope it stands, every function a known one. What runs is the text that DuckDB makes
of the checked tree, which is parsed and checked again: so nothing that the tree lacks can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from headrace.config.names import suggestion
from headrace.errors import InvalidRequest

Node = dict[str, Any]
Serialize = Callable[[str], str]
"""DuckDB's json_serialize_sql, and json_deserialize_sql the other way round."""

_CHANGES = "Only SELECT"
"""In what DuckDB says of other statements."""
_PIVOT = re.compile(r"\bPIVOT\b", re.IGNORECASE)
MAX_STATEMENT = 1 << 20
QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
RELATIONS = frozenset({"SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST", "PIVOT"})
MODIFIERS = frozenset({"LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "ORDER_MODIFIER", "DISTINCT_MODIFIER"})
ORDERS = frozenset({"ORDER_DEFAULT", "ASCENDING", "DESCENDING"})
CLASSES = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"}
    | {"LAMBDA", "LAMBDA_REF", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "WINDOW"}
    | {"TYPE"}
)
"""Of expressions; the types within a class are all alike."""
TYPES = frozenset(
    {"DECIMAL_TYPE_INFO", "STRUCT_TYPE_INFO", "LIST_TYPE_INFO", "ARRAY_TYPE_INFO", "STRING_TYPE_INFO"}
    | {"UNBOUND_TYPE_INFO", "GENERIC_TYPE_INFO"}
)
TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
SEARCHES = frozenset({"search", "vector_search", "text_search"})
"""Table functions that indexes answer."""
SCHEMAS = frozenset({"", "main", "pg_catalog"})
_RESERVED = ("duckdb_", "pg_", "pragma_", "sqlite_", "information_schema", "__")


class StatementRefused(InvalidRequest):
    """A statement of SQL is none that may run."""

    remedy = "Send one SELECT over the datasets that `GET /v1/datasets` lists."
    code = "sql_refused"


class Checked(msgspec.Struct, frozen=True):
    """A statement that may run: its text as DuckDB writes it, and the datasets it reads."""

    text: str
    datasets: tuple[str, ...]


def check(
    sql: str,
    datasets: Mapping[str, str],
    serialize: Serialize,
    deserialize: Serialize,
    more: Collection[str] = (),
) -> Checked:
    """The statement to run instead of `sql`; StatementRefused says what may not be, and where.

    `datasets` has the names that may be read, by themselves in small letters; `more` are functions that may
    be called besides DuckDB's, in small letters.
    """
    if len(sql) > MAX_STATEMENT:
        raise StatementRefused(f"the statement has {len(sql):,} characters, at most {MAX_STATEMENT:,} may be")
    if "\0" in sql:
        raise StatementRefused("the statement has a NUL character")
    used: set[str] = set()
    try:
        first = serialize(sql)
        if _CHANGES in first and _PIVOT.search(sql):
            raise StatementRefused(
                "PIVOT … ON without IN takes its columns from the rows: name them, as in SELECT * FROM orders"
                " PIVOT (sum(amount) FOR city IN ('Oslo', 'Rome'))"
            )
        walk_tree(first, datasets, used, more)
        text = deserialize(first)
        walk_tree(serialize(text), datasets, used, more)
    except RecursionError:
        raise StatementRefused("the statement is nested too deeply: simplify it") from None
    return Checked(text, tuple(sorted(used)))


def walk_tree(
    serialized: str, datasets: Mapping[str, str], used: set[str], more: Collection[str] = ()
) -> None:
    """Check one serialized statement and add the datasets it reads to `used`."""
    try:
        tree: Node = msgspec.json.decode(serialized)
    except msgspec.DecodeError:  # DuckDB writes a number such as 1e400 as Infinity
        raise StatementRefused(
            "a number in the statement is too large: write 'infinity'::DOUBLE where that is meant"
        ) from None
    if tree.get("error"):
        raise _unparsed(tree)
    statements = tree["statements"]
    if len(statements) != 1:
        raise StatementRefused(f"there are {len(statements)} statements: send one SELECT")
    _Walk(datasets, used, more).query(statements[0]["node"], frozenset())


def _unparsed(tree: Node) -> StatementRefused:
    message = str(tree.get("error_message", "")).strip() or "it cannot be parsed"
    if _CHANGES in message:
        return StatementRefused("only SELECT may run: the statement is another kind, or changes something")
    place = str(tree.get("position", ""))
    at = str(int(place) + 1) if place.isdecimal() else place  # as in all messages, from 1
    return StatementRefused(f"not a statement of SQL: {message}" + (f" (character {at})" if at else ""))


class _Walk:
    """Visits every node. `scope` are the CTEs that are visible, in small letters."""

    def __init__(self, datasets: Mapping[str, str], used: set[str], more: Collection[str]) -> None:
        self._datasets, self._used, self._more = datasets, used, more

    def query(self, node: Node, scope: frozenset[str]) -> None:
        kind = node.get("type")
        if kind not in QUERIES:
            raise _refused("this kind of statement", kind, node)
        for entry in node.get("cte_map", {}).get("map", []):
            name = _cte_name(entry["key"])
            value = entry["value"]
            self._parts(value, scope, left_out=("query",))
            self.query(value["query"]["node"], scope)
            scope |= {name}
        if kind == "CTE_NODE":
            self.query(node["query"], scope)
            self._parts(node, scope | {_cte_name(node["cte_name"])}, left_out=("query", "cte_map"))
            return
        if kind == "RECURSIVE_CTE_NODE":
            self._parts(node["left"], scope, whole=True)
            scope |= {_cte_name(node["cte_name"])}
            self._parts(node, scope, left_out=("left", "cte_map"))
            return
        self._parts(node, scope, left_out=("cte_map",))

    def _parts(
        self, node: Node, scope: frozenset[str], *, left_out: tuple[str, ...] = (), whole: bool = False
    ) -> None:
        for found in _nodes([node] if whole else [v for k, v in node.items() if k not in left_out]):
            self._node(found, scope)

    def _node(self, node: Node, scope: frozenset[str]) -> None:
        kind: Any = node.get("type")
        family: Any = node.get("class")
        if isinstance(kind, dict) and node.keys() <= {"type", "is_null", "value"}:  # a constant
            self._parts(node, scope)
            return
        if kind in QUERIES and family is None:
            self.query(node, scope)
            return
        if family is not None:
            if family not in CLASSES:
                raise _refused("this expression", family, node)
        elif kind == "BASE_TABLE":
            self._table(node, scope)
        elif kind == "SHOW_REF":
            known = ", ".join(self._datasets.values())
            raise StatementRefused(f"SHOW and DESCRIBE are no SELECT: the datasets are {known or 'none'}")
        elif kind is not None and (
            kind not in RELATIONS | MODIFIERS | ORDERS | TYPES or "cte_map" in node or "cte_name" in node
        ):
            raise _refused("this part of a statement", node["type"], node)
        if "function_name" in node:
            self._function(node)
        if kind == "TABLE_FUNCTION":
            name = node["function"].get("function_name", "").lower()
            if name not in TABLE_FUNCTIONS and not (name in SEARCHES and name in self._more):
                raise StatementRefused(f"the table function {name!r} may not be used{_place(node)}")
        self._parts(node, scope)

    def _table(self, node: Node, scope: frozenset[str]) -> None:
        name, known = node["table_name"], node["table_name"].lower()
        if node["schema_name"] and not node["catalog_name"]:
            known = qualified_name(node["schema_name"].lower(), known)
        if node["catalog_name"] or (node["schema_name"] and known not in self._datasets):
            whole = ".".join(part for part in (node["catalog_name"], node["schema_name"], name) if part)
            raise StatementRefused(
                f"no dataset is named {whole!r}: a dataset's name has one part{_place(node)}"
            )
        if node.get("at_clause"):
            raise StatementRefused(f"{name!r} cannot be read AT a version or time{_place(node)}")
        if known in scope:  # whose names have one part
            return
        if known not in self._datasets:
            near = suggestion(known, list(self._datasets))
            listed = f": there are {', '.join(self._datasets.values())}" if self._datasets else ""
            raise StatementRefused(f"no dataset is named {name[:100]!r}{near or listed}{_place(node)}")
        self._used.add(known)

    def _function(self, node: Node) -> None:
        name = node["function_name"].lower()
        schema = node.get("schema", "")
        if schema.lower() not in SCHEMAS:
            name = f"{schema}.{name}"
        plain = schema.lower() in SCHEMAS and node.get("catalog", "").lower() in ("", "system")
        if not plain or not (name in functions() or name in TABLE_FUNCTIONS or name in self._more):
            near = suggestion(name, [*functions(), *self._more])
            raise StatementRefused(f"the function {name[:100]!r} may not be used{near}{_place(node)}")


@cache
def functions() -> frozenset[str]:
    """The names of functions that statements may call: those that read and change nothing but arguments."""
    listed = (files("headrace.data") / "functions.txt").read_text("utf-8")
    return frozenset(
        word for line in listed.splitlines() if not line.startswith("#") for word in line.split()
    )


def qualified_name(schema: str, table: str) -> str:
    """The name of a relation of this server's own among those of datasets, which have one part and no NUL."""
    return f"{schema}\0{table}"


def reserved(name: str) -> bool:
    """Whether DuckDB has relations of its own by such names."""
    return name.lower().startswith(_RESERVED)


def _cte_name(name: str) -> str:
    if reserved(name):
        raise StatementRefused(f"a CTE cannot be named {name[:100]!r}: such names are DuckDB's own")
    return name.lower()


def _nodes(values: list[Any]) -> Iterator[Node]:
    """The nearest objects within `values`."""
    for value in values:
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list):
            yield from _nodes(value)  # pyright: ignore[reportUnknownArgumentType]


def _refused(what: str, kind: object, node: Node) -> StatementRefused:
    return StatementRefused(f"{what} ({str(kind).lower().replace('_', ' ')}) may not be used{_place(node)}")


def _place(node: Node) -> str:
    at = node.get("query_location")
    return f" (character {at + 1})" if isinstance(at, int) and at < MAX_STATEMENT else ""
