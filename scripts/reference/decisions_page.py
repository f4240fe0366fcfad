"""The index of the decision records: title, status and date of each file of docs/decisions."""

from __future__ import annotations

import re
from pathlib import Path

from page_text import generated, table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
INTRODUCTION = """What was decided, why,
and what was tried and did not work. Each record follows MADR: context, decision, consequences. A later
record may overrule an earlier one; then both say so."""


def page() -> str:
    """The whole page."""
    return generated(
        "Decisions",
        "the records beside this page",
        INTRODUCTION,
        table(["record", "decision", "status", "date"], [_row(path) for path in records()]),
    )


def records() -> list[Path]:
    """The files of the records, oldest first."""
    return sorted(FOLDER.glob("[0-9][0-9][0-9][0-9]-*.md"))


def _row(path: Path) -> tuple[str, ...]:
    text = path.read_text()
    title = text.partition("\n")[0].removeprefix("# ").partition(". ")[2]
    return f"[{path.name[:4]}]({path.name})", title, field(text, "Status"), field(text, "Date")


def field(text: str, name: str) -> str:
    """What a record says behind `- Name:`; ValueError where it says nothing."""
    found = re.search(rf"^- {name}: (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{text.partition(chr(10))[0]!r} has no line '- {name}: …'")
    return found.group(1)
