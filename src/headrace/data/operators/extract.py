"""`extract(col, schema)`: what a text says, as a STRUCT with the fields of a schema."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, cast

from headrace.data.decoding import Decoder, Decoding
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue, SqlOperator
from headrace.data.questions import Constant, Value
from headrace.data.source import quoted
from headrace.grammar.constraint import schema_constraint
from headrace.grammar.json_schema import compile_schema

MAX_TOKENS = 512
MAX_DEPTH = 8
PLAIN: Mapping[str, tuple[str, str]] = {
    "string": ("VARCHAR", "string"),
    "text": ("VARCHAR", "string"),
    "varchar": ("VARCHAR", "string"),
    "integer": ("BIGINT", "integer"),
    "int": ("BIGINT", "integer"),
    "bigint": ("BIGINT", "integer"),
    "number": ("DOUBLE", "number"),
    "double": ("DOUBLE", "number"),
    "float": ("DOUBLE", "number"),
    "boolean": ("BOOLEAN", "boolean"),
    "bool": ("BOOLEAN", "boolean"),
}
"""Types of fields, in words of JSON Schema and of SQL."""


class Extract(SqlOperator):
    """`extract(body, {'name': 'string', 'age': 'integer'})`, `extract(body, ['name', 'city'])`, or a JSON
    Schema of an object as text or object. The answer of the model follows a grammar."""

    def __init__(self, site: CheckedCall) -> None:
        super().__init__(site)
        site.check_count(2, 2, f"{site.function}(column, schema)")
        self._schema = self._read(site.take_constant(1, "a schema"))
        site.check_options(("max_tokens",))
        compile_schema(self._schema, param="sql", disable_additional_properties=True)
        self.type = self._type(self._schema, 0)
        fields = ", ".join(self._schema["properties"])
        self._decoding = Decoding(
            prompt=lambda row: f"Extract from the text as JSON: {fields}.\n\n{site.texts(row)[0]}",
            sampling={
                "max_tokens": site.number_option("max_tokens", MAX_TOKENS, 1, 2**20),
                "temperature": 0.0,
            },
            constraint=schema_constraint(self._schema, param="sql"),
            read=_value,
        )
        self._decoder = Decoder(site, self.model)

    @property
    def identity(self) -> Sequence[object]:
        """See `SqlOperator.identity`."""
        return [*super().identity, json.dumps(self._schema)]

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`."""
        return await self._decoder.open(work)

    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """See `SqlOperator.cost`."""
        return await self._decoder.cost(work, rows, self._decoding)

    async def bounds(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost] | None:
        """See `SqlOperator.bounds`."""
        return await self._decoder.bounds(work, rows, self._decoding)

    def compute(self, work: StatementWork, rows: Sequence[Arguments]) -> AsyncGenerator[Sequence[RowValue]]:
        """See `SqlOperator.compute`. An answer that ends before its object does is NULL, and counts as
        cut."""
        return self._decoder.generate(work, rows, self._decoding)

    def _read(self, given: Constant) -> dict[str, Any]:
        """The JSON Schema of an object with all fields required."""
        if isinstance(given, str):
            try:
                given = cast("Constant", json.loads(given))
            except (ValueError, RecursionError) as error:
                raise self.site.refused(f"the schema is not JSON: {str(error)[:200]}") from None
        if isinstance(given, list) and all(isinstance(name, str) for name in given):
            given = dict.fromkeys(cast("list[str]", given), "string")
        if not isinstance(given, dict) or not given:
            raise self.site.refused("the schema has no fields: write {'name': 'string', 'age': 'integer'}")
        if "properties" in given:
            schema = dict(given)
        else:
            fields = {name: self._field(name, of) for name, of in given.items()}
            schema = {"properties": fields, "additionalProperties": False}
        properties = schema["properties"]
        if not isinstance(properties, dict) or not properties:
            raise self.site.refused("the schema has no properties")
        return {"type": "object", "required": list(cast("dict[str, Any]", properties)), **schema}

    def _field(self, name: str, of: Constant) -> dict[str, Any]:
        if isinstance(of, dict):
            return of
        found = PLAIN.get(str(of).lower())
        if found is None:
            raise self.site.refused(f"{name!r:.80} has the type {of!r:.80}: write one of {', '.join(PLAIN)}")
        return {"type": found[1]}

    def _type(self, schema: object, depth: int) -> str:
        """DuckDB's type of a schema."""
        given = cast(
            "Mapping[str, Any]", schema if isinstance(schema, Mapping) and depth <= MAX_DEPTH else {}
        )
        kind, properties = given.get("type"), given.get("properties")
        if kind == "object" and isinstance(properties, Mapping) and properties:
            fields = cast("Mapping[str, object]", properties).items()
            inner = ", ".join(f"{quoted(name)} {self._type(of, depth + 1)}" for name, of in fields)
            return f"STRUCT({inner})"
        if kind == "array":
            return f"{self._type(given.get('items'), depth + 1)}[]"
        if kind is None and all(isinstance(one, str) for one in given.get("enum") or [0]):
            return "VARCHAR"
        if not isinstance(kind, str) or kind not in PLAIN:
            raise self.site.refused(
                "a field of the schema has no type that a column can have: give one `type`"
            )
        return PLAIN[kind][0]


def _value(text: str) -> Value:
    try:
        return _within(json.loads(text))
    except (ValueError, RecursionError):  # it ended before its object
        return None


def _within(value: Any) -> Value:
    """The value without integers that no BIGINT can be."""
    if isinstance(value, dict):
        return {name: _within(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_within(one) for one in cast("list[Any]", value)]
    return None if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


OPERATOR = Extract
