"""DuckDB's parser, as trees. Runs in the process of the statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy

import msgspec

from headrace.data.guard import Node, Serialize
from headrace.data.source import literal


class DuckDialect:
    """DuckDB's parser, as trees."""

    def __init__(self, serialize: Serialize, deserialize: Serialize) -> None:
        self._serialize, self._deserialize = serialize, deserialize
        self._cast = self.expression("CAST(x AS VARCHAR)")

    def tree(self, sql: str) -> Node:
        """Of a statement."""
        return msgspec.json.decode(self._serialize(sql))

    def text(self, tree: Node) -> str:
        """Of a statement's tree."""
        return self._deserialize(json.dumps(tree))

    def expression(self, sql: str) -> Node:
        """The tree of an expression."""
        return self.tree(f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]

    def table(self, name: str) -> Node:
        """The tree of a table of the connection."""
        return self.tree(f"SELECT * FROM {name}")["statements"][0]["node"]["from_table"]

    def select(self, expressions: Sequence[Node]) -> str:
        """SELECT of some expressions, without a FROM."""
        tree = self.tree("SELECT 1")
        tree["statements"][0]["node"]["select_list"] = list(expressions)
        return self.text(tree)

    def as_text(self, expression: Node) -> Node:
        """The expression as VARCHAR."""
        cast = deepcopy(self._cast)
        cast["child"] = expression
        return cast

    def constant(self, value: object) -> Node:
        """A value as a literal."""
        if isinstance(value, bool) or value is None:
            return self.expression("NULL" if value is None else str(value).lower())
        if isinstance(value, str):
            return self.expression(literal(value))
        return self.expression(f"CAST({value!r} AS DOUBLE)" if isinstance(value, float) else str(value))
