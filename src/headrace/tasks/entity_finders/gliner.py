"""GLiNER checkpoints: words scored as spans, or for start, end and inside, by labels in front of the text.

After GLiNER (Zaratiana et al. 2023) and its token-level kind (Stepanov and Shtopko 2024). The words, the
input and the scores are those of the package `gliner`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headrace.errors import InvalidRequest
from headrace.ops.value import Array
from headrace.tasks.entity_finders.finder import Frame, Units, check_tokens, id_of, word_units
from headrace.tasks.entity_finders.gliner_scores import (
    BoundaryScores,
    contextual,
    label_vectors,
    span_scores,
    token_scores,
)
from headrace.tasks.entity_finders.spans import Candidates, Ints, check_finite, gathered, keys_of
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gliner import SubtokenPooling
from headrace.weights.gliner_head import GlinerHead, read_gliner_head
from headrace.weights.head_tensors import SpanScorer

_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
_WORDS_AT_A_TIME = 512
"""Enough rows for fast products; the intermediate rows take some 10 MB."""


class GlinerFinder:
    """The head of a GLiNER checkpoint on an encoder with `states` numbers per token. Raises
    UnsupportedModel, CorruptFile."""

    window: int | None = None

    def __init__(self, folder: Path, states: int) -> None:
        self._head: GlinerHead = read_gliner_head(folder, states)
        self.most_units: int | None = self._head.settings.longest_text

    def frame(self, tokenizer: Tokenizer, labels: Sequence[str]) -> Frame:
        """See `Finder.frame`. InvalidRequest for a label without tokens, or with a mark in it."""
        settings = self._head.settings
        around = tokenizer.encode_marked("a")
        before, after = list(around.before), list(around.after)
        label_mark, text_mark = (id_of(tokenizer, mark) for mark in (settings.label_mark, settings.text_mark))
        marks: list[int] = []
        for label, ids in zip(labels, tokenizer.encode_words(labels), strict=True):
            _check_label(label, ids, (settings.label_mark, settings.text_mark))
            marks.append(len(before) + (0 if settings.marks_labels else 1))
            before += [label_mark, *ids]
        return Frame([*before, text_mark], after, marks, tuple(labels))

    def units(self, tokenizer: Tokenizer, text: str) -> Units:
        """See `Finder.units`: a unit is a word, or a sign between words."""
        places = [found.span() for found in _WORD.finditer(text)]
        return word_units(tokenizer, [text[start:end] for start, end in places], places)

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
        for start, end in groups([len(part) for part in parts]):
            several = states[start:end]
            words = self._words(several, frame, parts[start:end])
            marks = np.stack([self._projected(one[frame.marks]) for one in several])
            labels = label_vectors(self._head, marks)
            for spans in self._spans(words, labels, threshold):
                found.append(gathered(spans, every_label=every_label))
        return found

    def _words(self, states: Sequence[Array], frame: Frame, parts: Sequence[Units]) -> list[Array]:
        """Of each part the states [words, hidden] of its words."""
        begin, kind = len(frame.before), self._head.settings.subtokens
        pooled = [
            word_states(self._projected(one[begin : begin + len(part.ids)]), np.array(part.starts), kind)
            for one, part in zip(states, parts, strict=True)
        ]
        return contextual(self._head, pooled)

    def _projected(self, states: Array) -> Array:
        """States [tokens, hidden] in the head's size."""
        return states if self._head.projection is None else self._head.projection(states)

    def _spans(
        self, words: Sequence[Array], labels: Array, threshold: float
    ) -> Iterator[Iterator[tuple[int, Ints, Array]]]:
        if isinstance(self._head.scorer, SpanScorer):
            longest = self._head.settings.longest_span
            for scores in span_scores(self._head.scorer, words, labels, longest):
                yield spans_above(check_finite(scores), threshold)
        else:
            for scores in token_scores(self._head.scorer, words, labels):
                check_finite(scores.start)
                yield _of_tokens(scores, threshold)


def _check_label(label: str, ids: Sequence[int], marks: Sequence[str]) -> None:
    check_tokens(label, ids)
    for mark in marks:
        if mark in label:
            raise InvalidRequest(
                f"the label {label[:80]!r} has {mark} in it, with which labels are marked: leave it out",
                param="labels",
            )


def groups(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Texts that are scored together: as many as have some hundred words, at least one."""
    start, count = 0, 0
    for index, number in enumerate(words):
        if count and count + number > _WORDS_AT_A_TIME:
            yield start, index
            start, count = index, 0
        count += number
    if words:
        yield start, len(words)


def word_states(states: Array, starts: Ints, kind: SubtokenPooling) -> Array:
    """States [words, hidden] of those [tokens, hidden] of their subtokens, of which word w has those from
    `starts[w]` on; zeros for a word without any."""
    first, end = starts[:-1], starts[1:]
    has = first < end
    found = np.zeros((len(first), states.shape[1]), np.float32)
    if kind == "first":
        found[has] = states[first[has]]
    elif kind == "last":
        found[has] = states[end[has] - 1]
    elif has.any():
        reduce = np.add if kind == "mean" else np.maximum
        found[has] = reduce.reduceat(states, first[has], axis=0)
        if kind == "mean":
            found[has] /= (end - first)[has, None].astype(np.float32)
    return found


def spans_above(scores: Array, threshold: float) -> Iterator[tuple[int, Ints, Array]]:
    """Of each label the spans above the threshold, of scores [widths, words, labels]; those of spans that
    end behind the text have 0."""
    above = scores > threshold
    for label in np.flatnonzero(above.any(axis=(0, 1))).tolist():
        width, first = np.nonzero(above[:, :, label])
        yield label, keys_of(first, first + width), scores[width, first, label]


def _of_tokens(scores: BoundaryScores, threshold: float) -> Iterator[tuple[int, Ints, Array]]:
    """Of each label the spans whose start, end and inside scores all are above the threshold; their score is
    the least of these."""
    for label in range(scores.start.shape[1]):
        start, end, inside = (one[:, label] for one in (scores.start, scores.end, scores.inside))
        last = np.flatnonzero(end > threshold)
        outside = np.append(np.flatnonzero(inside < threshold), len(inside))
        keys: list[Ints] = [np.empty(0, np.int64)]
        found: list[Array] = [np.empty(0, np.float32)]
        for first in np.flatnonzero(start > threshold).tolist():
            stop = int(outside[np.searchsorted(outside, first)])
            own = last[np.searchsorted(last, first) : np.searchsorted(last, stop)]
            if len(own):
                least = np.minimum.accumulate(inside[first:stop])[own - first]
                found.append(np.minimum(np.minimum(least, end[own]), start[first]))
                keys.append(keys_of(np.full(len(own), first), own))
        yield label, np.concatenate(keys), np.concatenate(found)
