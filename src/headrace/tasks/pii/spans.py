"""Findings that overlap: which of them hold."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec.structs import replace

from headrace.tasks.pii.recognizer import RecognizerResult

_start = itemgetter(0)


class Taken:
    """Intervals that do not overlap."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def free(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are not taken."""
        parts: list[tuple[int, int]] = []
        place = bisect_right(self._spans, start, key=_start) - 1
        if place >= 0:
            start = max(start, self._spans[place][1])
        for first, last in self._spans[place + 1 :] if start < end else ():
            if first >= end:
                break
            if start < first:
                parts.append((start, first))
            start = last
        if start < end:
            parts.append((start, end))
        return parts

    def take(self, start: int, end: int) -> None:
        """Note that these are taken."""
        insort(self._spans, (start, end))


def _best_first(findings: Iterable[RecognizerResult]) -> list[RecognizerResult]:
    return sorted(findings, key=lambda one: (-one.score, one.start - one.end, one.start, one.label))


def resolved(text: str, findings: Iterable[RecognizerResult]) -> list[RecognizerResult]:
    """Findings without overlaps, in order, that cover all characters that any finding covers.

    Where two overlap, the one with the higher score, then the longer one, keeps its characters, and what is
    left of the other stays one or two findings, unless it is blanks and punctuation only.
    """
    taken, kept = Taken(), list[RecognizerResult]()
    for one in _best_first(findings):
        for start, end in taken.free(one.start, one.end):
            while start < end and text[start].isspace():
                start += 1
            while start < end and text[end - 1].isspace():
                end -= 1
            if any(map(str.isalnum, text[start:end])):
                taken.take(start, end)
                kept.append(replace(one, start=start, end=end))
    return sorted(kept, key=lambda one: one.start)


def distinct(findings: Sequence[RecognizerResult]) -> list[RecognizerResult]:
    """Of findings with one label that overlap, the best; those of several labels may overlap. In order."""
    taken: dict[str, Taken] = {}
    kept: list[RecognizerResult] = []
    for one in _best_first(findings):
        of_label = taken.setdefault(one.label, Taken())
        if of_label.free(one.start, one.end) == [(one.start, one.end)]:
            of_label.take(one.start, one.end)
            kept.append(one)
    return sorted(kept, key=lambda one: (one.start, one.end, one.label))
