"""Tables of a file of SQLite: `sqlite:PATH#TABLE`."""

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

EXTENSIONS: tuple[str, ...] = ("sqlite_scanner",)


def _connect(opened: Opened) -> Source:
    path, table = split_table(opened)
    path = local_path(path)
    name = quoted(opened.attached)
    return Source(
        relation=f"{name}.{qualified(table, opened.where)}",
        extensions=EXTENSIONS,
        statements=(f"ATTACH {literal(path)} AS {name} (TYPE sqlite, READ_ONLY)",),
    )


CONNECTOR = Connector(_connect, EXTENSIONS)
