"""Tables of PostgreSQL. The secret is the password, or a URL with all fields."""

from __future__ import annotations

from headrace.data.source import Connector, Opened, Source, attached_server

PORT = 5432


def _connect(opened: Opened) -> Source:
    return attached_server(opened, "postgres", PORT)


CONNECTOR = Connector(_connect, ("postgres_scanner",))
