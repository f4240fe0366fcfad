"""Tables of a file of DuckDB: `duckdb:PATH#TABLE`."""

from __future__ import annotations

from headrace.data.source import Connector, Opened, Source, attached_file

EXTENSIONS: tuple[str, ...] = ()


def _connect(opened: Opened) -> Source:
    return attached_file(opened, EXTENSIONS, "READ_ONLY")


CONNECTOR = Connector(_connect, EXTENSIONS)
