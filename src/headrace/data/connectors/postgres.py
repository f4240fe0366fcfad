"""Tables of PostgreSQL. The secret is the password, or a URL with all fields."""

from __future__ import annotations

from headrace.data.source import Connector, Opened, Source, literal, qualified, quoted, server_fields

PORT = 5432


def _connect(opened: Opened) -> Source:
    fields = ", ".join(
        f"{key.upper()} {literal(value)}" for key, value in server_fields(opened, PORT).items()
    )
    name = quoted(opened.attached)
    return Source(
        relation=f"{name}.{qualified(opened.location, opened.where)}",
        extensions=("postgres_scanner",),
        statements=(
            f"CREATE SECRET {name} (TYPE postgres, {fields})",
            f"ATTACH '' AS {name} (TYPE postgres, READ_ONLY, SECRET {name})",
        ),
    )


CONNECTOR = Connector(_connect, ("postgres_scanner",))
