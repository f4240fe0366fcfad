"""The table of keywords in the guide is the code's."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.grammar.schema.keywords import ENFORCED, SILENT_ANNOTATIONS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "structured-output.md"


def test_every_keyword_stands_in_the_table() -> None:
    rows = re.findall(
        r"^\| (`.*?) \| (.*) \|$", GUIDE.read_text().split("## What is enforced")[1], re.MULTILINE
    )
    named = {keyword: text for keywords, text in rows for keyword in re.findall(r"`([^`]+)`", keywords)}
    assert {keyword for keyword, text in named.items() if text.startswith("enforced")} == ENFORCED
    assert {keyword for keyword, text in named.items() if text == "annotations"} == SILENT_ANNOTATIONS
