"""Tables of a file of SQLite: `sqlite:PATH#TABLE`."""

from __future__ import annotations

from headrace.data.source import Connector, Opened, Source, attached_file

EXTENSIONS: tuple[str, ...] = ("sqlite_scanner",)


def _connect(opened: Opened) -> Source:
    return attached_file(opened, EXTENSIONS, "TYPE sqlite, READ_ONLY")


CONNECTOR = Connector(_connect, EXTENSIONS)
