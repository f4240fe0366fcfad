"""Answers about the server itself, as the tables of Arrow that Flight SQL prescribes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from headrace import __version__
from headrace.flight.commands import Listed, SqlInfo, Tables

TABLE_TYPE = "TABLE"
NO_NAME = ""
"""Of the only catalog and schema: a dataset's name has one part."""
_INFO: Mapping[int, tuple[int, Any]] = {
    0: (0, "Headrace"),
    1: (0, __version__),
    2: (0, "1.3"),  # of Arrow's format
    3: (1, True),  # it can only be read
    4: (1, True),  # SQL
    5: (1, False),  # Substrait
    8: (3, 0),  # no transactions
}
"""By number: the place of its type in the union of values, and the value."""
_KEYS = (
    *("pk_catalog_name", "pk_db_schema_name", "pk_table_name", "pk_column_name"),
    *("fk_catalog_name", "fk_db_schema_name", "fk_table_name", "fk_column_name"),
)


def stream_of(table: Any) -> bytes:
    """A table as an Arrow stream."""
    arrow = importlib.import_module("pyarrow")
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def sql_info(asked: SqlInfo) -> bytes:
    """What the server is and can."""
    arrow = importlib.import_module("pyarrow")
    kinds = [
        arrow.field("string_value", arrow.utf8()),
        arrow.field("bool_value", arrow.bool_()),
        arrow.field("bigint_value", arrow.int64()),
        arrow.field("int32_bitmask", arrow.int32()),
        arrow.field("string_list", arrow.list_(arrow.utf8())),
        arrow.field("int32_to_int32_list_map", arrow.map_(arrow.int32(), arrow.list_(arrow.int32()))),
    ]
    wanted = [number for number in _INFO if not asked.wanted or number in asked.wanted]
    children: list[list[Any]] = [[] for _ in kinds]
    types: list[int] = []
    offsets: list[int] = []
    for number in wanted:
        kind, value = _INFO[number]
        types.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(value)
    values = arrow.UnionArray.from_dense(
        arrow.array(types, arrow.int8()),
        arrow.array(offsets, arrow.int32()),
        [arrow.array(child, kind.type) for child, kind in zip(children, kinds, strict=True)],
        [kind.name for kind in kinds],
    )
    schema = arrow.schema(
        [
            arrow.field("info_name", arrow.uint32(), nullable=False),
            arrow.field("value", values.type, nullable=False),
        ]
    )
    return stream_of(arrow.Table.from_arrays([arrow.array(wanted, arrow.uint32()), values], schema=schema))


def listing(kind: Listed) -> bytes:
    """A table that does not depend on datasets."""
    if kind == "CommandGetCatalogs":
        return _texts({"catalog_name": [NO_NAME]})
    if kind == "CommandGetDbSchemas":
        return _texts({"catalog_name": [NO_NAME], "db_schema_name": [NO_NAME]}, nullable=("catalog_name",))
    if kind == "CommandGetTableTypes":
        return _texts({"table_type": [TABLE_TYPE]})
    arrow = importlib.import_module("pyarrow")
    if kind == "CommandGetPrimaryKeys":
        names = ("catalog_name", "db_schema_name", "table_name", "column_name")
        fields = [(name, arrow.utf8()) for name in names]
        fields += [("key_sequence", arrow.int32()), ("key_name", arrow.utf8())]
    else:
        fields = [(name, arrow.utf8()) for name in _KEYS]
        fields += [("key_sequence", arrow.int32()), ("fk_key_name", arrow.utf8())]
        fields += [("pk_key_name", arrow.utf8()), ("update_rule", arrow.uint8())]
        fields += [("delete_rule", arrow.uint8())]
    return stream_of(arrow.schema(fields).empty_table())


def tables(names: Sequence[str], schemas: Sequence[bytes] | None) -> bytes:
    """Datasets by their names, with the schemas of their rows where they were asked for."""
    arrow = importlib.import_module("pyarrow")
    columns: dict[str, Any] = {
        "catalog_name": [NO_NAME] * len(names),
        "db_schema_name": [NO_NAME] * len(names),
        "table_name": list(names),
        "table_type": [TABLE_TYPE] * len(names),
    }
    fields = [
        arrow.field(name, arrow.utf8(), nullable=name in ("catalog_name", "db_schema_name"))
        for name in columns
    ]
    if schemas is not None:
        columns["table_schema"] = list(schemas)
        fields.append(arrow.field("table_schema", arrow.binary(), nullable=False))
    return stream_of(arrow.Table.from_pydict(columns, schema=arrow.schema(fields)))


def chosen(asked: Tables, names: Sequence[str]) -> list[str]:
    """The names that are asked for, in order."""
    if asked.types and TABLE_TYPE not in asked.types:
        return []
    if asked.catalog not in (None, NO_NAME) or not _like(asked.schema, NO_NAME):
        return []
    return sorted(name for name in names if _like(asked.pattern, name))


def _like(pattern: str | None, name: str) -> bool:
    """Whether a name matches SQL's pattern: % is any text, _ one character. A pattern of many % takes no
    longer than its length times the name's."""
    if pattern is None:
        return True
    at, place, star, resume = 0, 0, -1, 0
    while place < len(name):
        if at < len(pattern) and pattern[at] == "%":
            star, resume = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("_", name[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return not pattern[at:].strip("%")


def _texts(columns: Mapping[str, Sequence[str]], nullable: Sequence[str] = ()) -> bytes:
    arrow = importlib.import_module("pyarrow")
    schema = arrow.schema([arrow.field(name, arrow.utf8(), nullable=name in nullable) for name in columns])
    return stream_of(arrow.Table.from_pydict(dict(columns), schema=schema))
