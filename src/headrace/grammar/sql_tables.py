"""Tables that a prompt begins with, as `Table players (name, team)`, a line each."""

from __future__ import annotations

import re
from typing import Final

MAX_LINE: Final = 4096
_TABLE: Final = re.compile(r"table +([^\s();,][^();]{0,127}?) *\(([^();]+)\) *[;.:]?", re.IGNORECASE)


def tables_of_prompt(text: str) -> dict[str, list[str]]:
    """Lists of columns by table, of the first lines; empty where no table or no question stands there."""
    tables: dict[str, list[str]] = {}
    lines = [line for line in text.split("\n") if line.strip()]
    for at, line in enumerate(lines):
        found = _TABLE.fullmatch(line.strip()) if len(line) <= MAX_LINE else None
        if found is None:
            return tables if at else {}
        tables[found[1]] = [column.strip() for column in found[2].split(",")]
    return {}
