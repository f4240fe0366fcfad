"""Tables of a file of DuckDB: `duckdb:PATH#TABLE`."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.data.source import Connector, Opened, Source, attached_file, literal, name_parts, split_table

EXTENSIONS: tuple[str, ...] = ()


def _connect(opened: Opened) -> Source:
    source = attached_file(opened, EXTENSIONS, "READ_ONLY")
    return replace(source, statements=(*source.statements, _check(opened)))


def _check(opened: Opened) -> str:
    """A statement that fails where the dataset is no table: its author may have made a view of
    that name which reads other files, or servers, with the rights of this process."""
    *schema, table = name_parts(split_table(opened)[1], opened.where)
    conditions = [
        f"database_name = {literal(opened.attached)}",
        f"lower(table_name) = lower({literal(table)})",
    ]
    conditions += [f"lower(schema_name) = lower({literal(name)})" for name in schema]
    said = literal(f"the file has no table {table} (views of files are not read)")
    return (
        f"SELECT CASE WHEN count(*) = 0 THEN error({said}) END FROM duckdb_tables() "
        f"WHERE {' AND '.join(conditions)}"
    )


CONNECTOR = Connector(_connect, EXTENSIONS)
