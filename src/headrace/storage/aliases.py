"""Model aliases: user-defined names for models, each with a system prompt and parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct, field

from headrace.storage.sql_store import Row, SqlStore

_COLUMNS = "name, target, created_s, system, parameters, license, owner"
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[1:])


class Alias(Struct, frozen=True, kw_only=True):
    """`target` is the name of a model, never of another alias. `owner` is the account that made it, "" for
    one without a key, None where that is not known."""

    name: str
    target: str
    created_s: int
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    license: str | None = None
    owner: str | None = None


class Aliases:
    """The aliases in a database."""

    def __init__(self, database: SqlStore) -> None:
        self._database = database

    def find(self, name: str) -> Alias | None:
        """The alias with this name, if any."""
        if not self._database.exists:
            return None
        rows = self._database.query(f"SELECT {_COLUMNS} FROM aliases WHERE name = ?", (name,))
        return _alias(rows[0]) if rows else None

    def all(self) -> list[Alias]:
        """All aliases, sorted by name."""
        if not self._database.exists:
            return []
        return [_alias(row) for row in self._database.query(f"SELECT {_COLUMNS} FROM aliases ORDER BY name")]

    def put(self, alias: Alias) -> None:
        """Store an alias, replacing one with the same name."""
        self._database.execute(
            f"INSERT INTO aliases ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (name) DO UPDATE SET {_REPLACED}",
            (
                alias.name,
                alias.target,
                alias.created_s,
                alias.system,
                json.dumps(dict(alias.parameters)),
                alias.license,
                alias.owner,
            ),
        )

    def remove(self, name: str) -> bool:
        """Delete an alias; True if it existed."""
        if not self._database.exists:
            return False
        return self._database.execute("DELETE FROM aliases WHERE name = ?", (name,)) > 0


def _alias(row: Row) -> Alias:
    name, target, created_s, system, parameters, license, owner = cast("tuple[Any, ...]", row)
    return Alias(
        name=name,
        target=target,
        created_s=created_s,
        system=system,
        parameters=json.loads(parameters),
        license=license,
        owner=owner,
    )
