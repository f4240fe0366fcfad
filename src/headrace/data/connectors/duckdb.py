"""Tables of a file of DuckDB: `duckdb:PATH#TABLE`."""

from __future__ import annotations

from headrace.data.source import (
    Connector,
    Opened,
    Source,
    literal,
    local_path,
    qualified,
    quoted,
    split_table,
)

EXTENSIONS: tuple[str, ...] = ()


def _connect(opened: Opened) -> Source:
    path, table = split_table(opened)
    path = local_path(path)
    name = quoted(opened.attached)
    return Source(
        relation=f"{name}.{qualified(table, opened.where)}",
        extensions=EXTENSIONS,
        statements=(f"ATTACH {literal(path)} AS {name} (READ_ONLY)",),
    )


CONNECTOR = Connector(_connect, EXTENSIONS)
