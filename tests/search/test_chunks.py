"""Chunks: within their size, in order, nothing lost, cut where the structure says."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.search.chunks import chunked


def places(text: str) -> list[tuple[int, int]]:
    """A token for up to four letters, as a tokenizer of pieces of words has them."""
    return [found.span() for found in re.finditer(r"\w{1,4}|[^\w\s]", text)]


@settings(max_examples=200)
@given(st.text("ab #.\n\t漢!", max_size=400), st.integers(4, 40))
def test_chunks_have_all_of_a_text(text: str, most: int) -> None:
    spans = chunked(text, places, most)
    assert all(len(places(text[span.start : span.end])) <= most for span in spans)
    ends = [0, *(span.end for span in spans)]
    starts = [*(span.start for span in spans), len(text)]
    for end, start in zip(ends, starts, strict=True):
        assert end <= start
        assert not text[end:start].strip()


def test_chunks_begin_at_headings() -> None:
    section = "Some words of a section that are about it. " * 4
    text = f"# One\n\n{section}\n\n## Two\n\n{section}\n\n## Three\n\nshort\n\n# Four\n\n{section}"
    found = [text[span.start : span.end] for span in chunked(text, places, 60)]
    assert [one.split("\n")[0] for one in found] == ["# One", "## Two", "## Three", "# Four"]


def test_a_long_word_is_cut() -> None:
    spans = chunked("x" * 1_000_000, places, 250)
    assert len(spans) == 1000
    assert {span.end - span.start for span in spans} == {1000}


def test_what_fits_stays_whole() -> None:
    text = "# A\n\nb. c.\n\n# D\n\ne"
    [span] = chunked(f"  {text}\n\n", places, 100)
    assert (span.start, span.end) == (2, 2 + len(text))
    assert chunked(" \n ", places, 8) == []
