"""Findings that overlap: which of them hold."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.tasks.pii.recognizer import RecognizerResult

_start = itemgetter(0)


class Taken:
    """Intervals that neither overlap nor adjoin."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def is_free(self, start: int, end: int) -> bool:
        """Whether nothing of [start, end) is taken, and there is something."""
        place = bisect_right(self._spans, start, key=_start)
        before = self._spans[place - 1][1] if place else start
        after = self._spans[place][0] if place < len(self._spans) else end
        return before <= start < end <= after

    def free(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are not taken."""
        parts: list[tuple[int, int]] = []
        place = bisect_right(self._spans, start, key=_start)
        if place:
            start = max(start, self._spans[place - 1][1])
        while start < end and place < len(self._spans) and self._spans[place][0] < end:
            first, last = self._spans[place]
            if start < first:
                parts.append((start, first))
            start = last
            place += 1
        if start < end:
            parts.append((start, end))
        return parts

    def take(self, start: int, end: int) -> None:
        """Note that these are taken, which were free."""
        place = bisect_left(self._spans, start, key=_start)
        first = last = place
        if place and self._spans[place - 1][1] == start:
            first, start = place - 1, self._spans[place - 1][0]
        if place < len(self._spans) and self._spans[place][0] == end:
            last, end = place + 1, self._spans[place][1]
        self._spans[first:last] = [(start, end)]


class _Characters:
    """Where a text shows something, and where it has letters or digits."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _signs(self) -> NDArray[np.uint8]:
        text = self._text
        classes = {ord(one): "a" if one.isalnum() else " " if one.isspace() else "." for one in set(text)}
        return np.frombuffer(text.translate(classes).encode(), np.uint8)

    @cached_property
    def _visible(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._signs != ord(" "))

    @cached_property
    def _named(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._signs == ord("a"))

    def trimmed(self, start: int, end: int) -> tuple[int, int] | None:
        """[start, end) without blanks at its ends; None where it has neither letters nor digits."""
        if self._text[start].isalnum() and self._text[end - 1].isalnum():  # as most have
            return start, end
        first, last = np.searchsorted(self._named, (start, end))
        if first == last:
            return None
        first, last = np.searchsorted(self._visible, (start, end))
        return int(self._visible[first]), int(self._visible[last - 1]) + 1


def _best_first(findings: Iterable[RecognizerResult]) -> list[RecognizerResult]:
    return sorted(findings, key=lambda one: (-one.score, one.start - one.end, one.start, one.label))


def resolved(text: str, findings: Iterable[RecognizerResult]) -> list[RecognizerResult]:
    """Findings without overlaps, in order, that cover all characters that any finding covers.

    Where two overlap, the one with the higher score, then the longer one, keeps its characters, and what is
    left of the other stays one or two findings, unless it is blanks and punctuation only. However they
    overlap, it takes about as long as sorting them.
    """
    ordered = _best_first(findings)
    if not ordered:
        return []
    characters, taken, kept = _Characters(text), Taken(), list[RecognizerResult]()
    for one in ordered:
        for start, end in taken.free(one.start, one.end):
            found = characters.trimmed(start, end)
            if found is not None:
                kept.append(replace(one, start=found[0], end=found[1]))
            # What is between two findings can be no part of a third one: it is not looked at again.
            first = start if one.start < start or found is None else found[0]
            last = end if end < one.end or found is None else found[1]
            if found is not None or (one.start < start and end < one.end):
                taken.take(first, last)
    return sorted(kept, key=lambda one: one.start)


def distinct(findings: Sequence[RecognizerResult]) -> list[RecognizerResult]:
    """Of findings with one label that overlap, the best; those of several labels may overlap. In order."""
    taken: dict[str, Taken] = {}
    kept: list[RecognizerResult] = []
    for one in _best_first(findings):
        of_label = taken.setdefault(one.label, Taken())
        if of_label.is_free(one.start, one.end):
            of_label.take(one.start, one.end)
            kept.append(one)
    return sorted(kept, key=lambda one: (one.start, one.end, one.label))
