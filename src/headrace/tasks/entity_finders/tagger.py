"""The bundled `tagger` and others of its kind: tokens scored for start, end and inside of each label.

After GLiNER (Zaratiana et al. 2023), with start, end and inside scores as in Stepanov and Shtopko (2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headrace.ops.value import Array
from headrace.tasks.entity_finders.finder import Frame, Units, id_of
from headrace.tasks.entity_finders.spans import (
    Candidates,
    Ints,
    Span,
    check_finite,
    choose_spans,
    gathered,
    keys_of,
)
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.tagger_head import TaggerHead, read_tagger_head

START, END, INSIDE = 0, 1, 2


class TaggerFinder:
    """A tagger's head. Raises UnsupportedModel, CorruptFile where its files are no tagger's."""

    most_units: int | None = None

    def __init__(self, folder: Path) -> None:
        self._head: TaggerHead = read_tagger_head(folder)
        self.window: int | None = self._head.window

    def frame(self, tokenizer: Tokenizer, labels: Sequence[str]) -> Frame:
        """See `Finder.frame`."""
        return label_frame(tokenizer, labels, self._head.label_mark, self._head.text_mark)

    def units(self, tokenizer: Tokenizer, text: str) -> Units:
        """See `Finder.units`: a unit is a token."""
        return token_units(tokenizer, text)

    def find(
        self,
        states: Sequence[Array],
        frame: Frame,
        parts: Sequence[Units],
        threshold: float,
        *,
        every_label: bool,
    ) -> list[Candidates]:
        """See `Finder.find`."""
        found: list[Candidates] = []
        begin = len(frame.before)
        for one, part in zip(states, parts, strict=True):
            chances = self._head.chances(one[begin : begin + len(part)], one[frame.marks])
            spans = _spans(check_finite(chances), threshold, self._head.longest_span)
            found.append(gathered(spans, every_label=every_label))
        return found


def label_frame(tokenizer: Tokenizer, labels: Sequence[str], label_mark: str, text_mark: str) -> Frame:
    """A marker and the words of each label, then another marker and the text."""
    before, marks = ([] if tokenizer.bos_id is None else [tokenizer.bos_id]), list[int]()
    for label in labels:
        marks.append(len(before))
        before += [id_of(tokenizer, label_mark)]
        before += tokenizer.encode(f" {label}", add_special=False, parse_special=False)
    return Frame([*before, id_of(tokenizer, text_mark)], [], marks, tuple(labels))


def token_units(tokenizer: Tokenizer, text: str) -> Units:
    """Each token with its characters, without white space in front."""
    ids, places = tokenizer.encode_with_places(text)
    characters = [without_blanks(text, *place) for place in places]
    return Units(ids, list(range(len(ids) + 1)), characters)


def without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """Characters [start, end) without white space in front."""
    while start < end and text[start].isspace():
        start += 1
    return start, end


def best_spans(chances: Array, threshold: float, longest: int) -> list[Span]:
    """The likeliest spans of `chances` [tokens, labels, 3] that do not overlap, each with one label."""
    found = gathered(_spans(chances, threshold, longest), every_label=False)
    return choose_spans(found, flat=True, every_label=False)


def _spans(chances: Array, threshold: float, longest: int) -> Iterator[tuple[int, Ints, Array]]:
    """Of each label the spans above the threshold. The score is the geometric mean of the start, the end and
    the mean of the inside scores, so neither of the first two can be far below the threshold."""
    for label in range(chances.shape[1]):
        starts, ends, insides = (chances[:, label, part] for part in (START, END, INSIDE))
        inside = np.concatenate([[0.0], np.cumsum(insides, dtype=np.float64)])
        last = np.flatnonzero(ends > threshold / 2)
        keys: list[Ints] = [np.empty(0, np.int64)]
        scores: list[Array] = [np.empty(0, np.float32)]
        for first in map(int, np.flatnonzero(starts > threshold / 2)):
            own = last[np.searchsorted(last, first) : np.searchsorted(last, first + longest)]
            mean = (inside[own + 1] - inside[first]) / (own + 1 - first)
            score = np.cbrt(starts[first] * ends[own] * mean).astype(np.float32)
            above = score > threshold
            keys.append(keys_of(np.full(int(above.sum()), first), own[above]))
            scores.append(score[above])
        yield label, np.concatenate(keys), np.concatenate(scores)
