"""Tables of MySQL and MariaDB. The secret is the password, or a URL with all fields."""

from __future__ import annotations

from headrace.data.source import Connector, Opened, Source, literal, qualified, quoted, server_fields

PORT = 3306
OWN = ("aggregate_pushdown_enabled", "order_pushdown_enabled", "experimental_filter_pushdown")
"""What MySQL would compute and is computed here: its texts are equal and in order by other rules, and pushed
aggregates end in an internal error (1.5.5)."""


def _connect(opened: Opened) -> Source:
    fields = ", ".join(
        f"{key.upper()} {literal(value)}" for key, value in server_fields(opened, PORT).items()
    )
    name = quoted(opened.attached)
    return Source(
        relation=f"{name}.{qualified(opened.location, opened.where)}",
        extensions=("mysql_scanner",),
        statements=(
            *(f"SET mysql_{setting} = false" for setting in OWN),
            f"CREATE SECRET {name} (TYPE mysql, {fields})",
            f"ATTACH '' AS {name} (TYPE mysql, READ_ONLY, SECRET {name})",
        ),
    )


CONNECTOR = Connector(_connect, ("mysql_scanner",))
