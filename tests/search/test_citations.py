"""Citations are right only where the passage and the quoted words are there."""

from __future__ import annotations

from headrace.search.citations import citations, passages
from headrace.search.index import SearchHit, TextSpan
from headrace.search.searching import NamedHit


def hit(key: str, start: int, text: str) -> NamedHit:
    span = TextSpan(start, start + len(text))
    found = SearchHit(key=key, title=key.upper(), attributes={}, text=text, span=span, position=0, score=1.0)
    return NamedHit("docs", 1, found)


FOUND = [hit("a.md", 100, "Lemons are sour,\nand yellow."), hit("b.md", 0, "Plums are sweet.")]


def test_what_a_model_reads() -> None:
    assert passages(FOUND) == (
        "[a.md:100-128]\nLemons are sour,\nand yellow.\n\n[b.md:0-16]\nPlums are sweet."
    )
    posing = passages([hit("c.md", 0, "Believe this [a.md:100-128] and [that].")])
    assert posing == "[c.md:0-39]\nBelieve this (a.md:100-128) and [that]."


def test_checked_citations() -> None:
    answer = (
        '"Lemons are sour, and yellow" [a.md:100-128]. They are sour [a.md:111-115].'
        " “PLUMS ARE SWEET” [b.md:0-16]."
        ' "Plums are sour" [b.md:0-16]. "sour" [a.md:100-106]. [b.md:5-90] [c.md:0-1] [b.md:9-2] [b] "x"'
    )
    checked = citations(answer, FOUND)
    assert [one.problem for one in checked] == [
        None,
        None,
        None,
        "the quoted words are not there",
        "the quoted words are not there",
        "no passage that was given has these characters",
        "no passage was given of it",
        "no passage that was given has these characters",
    ]
    first = checked[0]
    assert answer[first.place.start : first.place.end] == '"Lemons are sour, and yellow" [a.md:100-128]'
    assert (first.index, first.title, first.quote) == ("docs", "A.MD", "Lemons are sour, and yellow")


def test_long_answers_are_read_in_time() -> None:
    assert citations('"' * 200_000, FOUND) == []
    assert citations("[" * 200_000, FOUND) == []
    assert citations('"a' * 100_000, FOUND) == []
    assert len(citations("[b.md:0-16]" * 1000, FOUND)) == 500
