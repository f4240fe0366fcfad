"""Which files an answer of file_search cites, and where."""

from __future__ import annotations

import random

from headrace.api.openai.responses.annotations import MAX_CITATIONS, file_citations
from headrace.api.openai.responses.items import FileSearchResult


def passage(number: int, text: str) -> FileSearchResult:
    return FileSearchResult(
        file_id=f"file-{number}", filename=f"notes {number}.md", text=text, score=0.5, attributes=None
    )


def cited(text: str, *texts: str) -> list[tuple[str, str]]:
    found = file_citations(text, [passage(number, one) for number, one in enumerate(texts)])
    return [(one.file_id, text[: one.index][-7:]) for one in found]


def test_names_and_words() -> None:
    lemons = "Lemons are sour because they hold much citric acid."
    assert cited("Lemons are sour.", lemons) == []  # too few words to tell
    assert cited("So: LEMONS are sour, because they hold much of it.", lemons) == [("file-0", "ld much")]
    assert cited("See notes 0.md, and [file-1].", lemons, "x") == [
        ("file-0", "es 0.md"),
        ("file-1", "[file-1"),
    ]
    assert cited("See notes 0.mdx and my_file-1.", lemons, "x") == []
    both = cited(f"{lemons} Then plums. {lemons}", lemons, f"He said: {lemons}")
    assert both == [(file, "ic acid") for _ in range(2) for file in ("file-0", "file-1")]
    assert cited("", lemons) == cited(lemons) == []


def test_it_is_bounded_and_quick_to_nothing() -> None:
    draw = random.Random(1)
    words = [draw.choice("ab") for _ in range(20_000)]
    text = " ".join(words)
    found = file_citations(text, [passage(number, text) for number in range(3)])
    assert [one.index for one in found] == [len(text)] * 3
    assert len(file_citations("file-0 " * 10_000, [passage(0, "x")])) == MAX_CITATIONS
