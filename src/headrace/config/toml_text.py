"""TOML as it is written: tables of plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_tables(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Tables by their dotted names, with their values."""
    return "\n".join(
        "\n".join(
            [f"[{name}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items()), ""]
        )
        for name, table in tables.items()
    )


def toml_key(name: str) -> str:
    """A key, quoted where it must be."""
    return name if _BARE.fullmatch(name) else toml_value(name)


def toml_value(value: object) -> str:
    """A text, a number, a truth value, or a table of these in one line."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value).items()
        return "{ " + ", ".join(f"{toml_key(key)} = {toml_value(one)}" for key, one in entries) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
