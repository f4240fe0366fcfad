"""Texts in chunks: whole where they are short, else cut where their structure says, never longer than a
number of the model's own tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from headrace.search.index import TextSpan

Places = Callable[[str], Sequence[tuple[int, int]]]
"""The characters [start, end) of each token of a text."""

_LEVELS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?=# )|\f",  # where a chapter, or a page, begins
        r"^(?=## )",
        r"^(?=#{3,6} )",
        r"\n(?:[ \t]*\n)+",  # paragraphs
        r"\n",
        r"(?<=[.!?;:。！？])[\s\"')\]]*\s|(?<=[。！？])",  # sentences
        r"\s+",
    )
)
_PORTION = 100_000  # characters that are tokenized at a time, cut at the end of a line


def chunked(text: str, places: Places, most: int) -> list[TextSpan]:
    """Spans of at most `most` tokens that together have all of a text but white space around them."""
    starts = _token_starts(text, places)

    def count(start: int, end: int) -> int:
        return bisect_left(starts, end) - bisect_left(starts, start)

    return _cut(text, TextSpan(0, len(text)), 0, most, starts, count)


def _cut(
    text: str,
    span: TextSpan,
    level: int,
    most: int,
    starts: Sequence[int],
    count: Callable[[int, int], int],
) -> list[TextSpan]:
    span = _stripped(text, span)
    if span.start == span.end:
        return []
    if count(span.start, span.end) <= most:
        return [span]
    if level == len(_LEVELS):
        return _cut_word(span, most, starts)
    found: list[TextSpan] = []
    for piece in _pieces(text, span, level):
        # Neighbors that fit together stay so, and a heading stays with what is cut deeper below it.
        if found and (count(found[-1].start, piece.end) <= most or _is_heading(text, found[-1])):
            found[-1] = TextSpan(found[-1].start, piece.end)
        else:
            found.append(piece)
    return [deeper for piece in found for deeper in _cut(text, piece, level + 1, most, starts, count)]


def _is_heading(text: str, span: TextSpan) -> bool:
    found = _stripped(text, span)
    return text.startswith("#", found.start) and "\n" not in text[found.start : found.end]


def _cut_word(span: TextSpan, most: int, starts: Sequence[int]) -> list[TextSpan]:
    first, end = bisect_left(starts, span.start), bisect_left(starts, span.end)
    bounds = [span.start, *starts[first + most : end : most], span.end]
    return [TextSpan(one, other) for one, other in pairwise(bounds) if one < other]


def _pieces(text: str, span: TextSpan, level: int) -> list[TextSpan]:
    ends = [match.end() for match in _LEVELS[level].finditer(text, span.start, span.end)]
    bounds = sorted({span.start, *ends, span.end})
    return [TextSpan(start, end) for start, end in pairwise(bounds)]


def _stripped(text: str, span: TextSpan) -> TextSpan:
    part = text[span.start : span.end]
    start = span.start + len(part) - len(part.lstrip())
    return TextSpan(start, max(start, span.start + len(part.rstrip())))


def _token_starts(text: str, places: Places) -> list[int]:
    starts: list[int] = []
    at = 0
    while at < len(text):
        end = len(text) if at + _PORTION >= len(text) else _line_end(text, at + _PORTION)
        starts += [at + start for start, stop in places(text[at:end]) if stop > start]
        at = end
    return sorted(starts)


def _line_end(text: str, place: int) -> int:
    found = text.find("\n", place, place + _PORTION)
    return min(len(text), place + _PORTION) if found < 0 else found + 1
