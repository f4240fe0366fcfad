"""Tables of MySQL and MariaDB. The secret is the password, or a URL with all fields."""

from __future__ import annotations

from headrace.data.source import Connector, Opened, Source, attached_server

PORT = 3306
OWN = ("aggregate_pushdown_enabled", "order_pushdown_enabled", "experimental_filter_pushdown")
"""What MySQL would compute and is computed here: its texts are equal and in order by other rules, and pushed
aggregates end in an internal error (1.5.5)."""


def _connect(opened: Opened) -> Source:
    return attached_server(
        opened, "mysql", PORT, first=tuple(f"SET mysql_{setting} = false" for setting in OWN)
    )


CONNECTOR = Connector(_connect, ("mysql_scanner",))
