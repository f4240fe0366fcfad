"""Zero-shot entity extraction: labels and text in one pass, then the best spans.

After GLiNER (Zaratiana et al. 2023), with start, end and inside scores as in Stepanov and Shtopko (2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from headrace.engine.client import LoadedModel
from headrace.errors import InvalidRequest, UnsupportedModel
from headrace.ops.value import Array
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.tagger_head import TaggerHead, read_tagger_head

START, END, INSIDE = 0, 1, 2
THRESHOLD = 0.5


class Entity(Struct, frozen=True):
    """Characters [start, end) of a text; `score` in (0, 1)."""

    start: int
    end: int
    label: str
    text: str
    score: float


class Labeled(Struct, frozen=True):
    """Model input, labels followed by the text: token ids, the position of each label's marker, where the
    text begins, and the characters of each text token.
    """

    ids: list[int]
    marks: list[int]
    begin: int
    characters: list[tuple[int, int]]


class Span(Struct, frozen=True):
    """Tokens [first, last] of the text, with the probability that they are an entity of label `label`."""

    first: int
    last: int
    label: int
    score: float


class EntityExtractor:
    """Extracts entities with a loaded tagger. Raises UnsupportedModel, CorruptFile."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._head: TaggerHead = read_tagger_head(model.folder)

    def mark(self, texts: Sequence[str], labels: Sequence[str], threshold: float) -> list[Labeled]:
        """The texts behind their labels, for `embed_tokens`. InvalidRequest for labels or a threshold that
        mean nothing."""
        _check(labels, threshold)
        tokenizer, head = self._model.tokenizer, self._head
        return [write_labels(tokenizer, text, labels, head.label_mark, head.text_mark) for text in texts]

    def read(
        self,
        texts: Sequence[str],
        marked: Sequence[Labeled],
        labels: Sequence[str],
        vectors: Sequence[Array],
        threshold: float,
    ) -> list[list[Entity]]:
        """Of each text its entities in order, none inside another; `vectors` [tokens, size] of its tokens."""
        head, found = self._head, list[list[Entity]]()
        for text, one, states in zip(texts, marked, vectors, strict=True):
            chances = head.chances(states[one.begin :], states[one.marks])
            spans = best_spans(chances, threshold, head.longest_span)
            found.append(_apart(_entity(text, one, span, labels) for span in spans))
        return found


def _apart(entities: Iterable[Entity]) -> list[Entity]:
    """Drop entities of white space only, and the less likely of two that share a character (tokens of
    partial UTF-8 characters can).
    """
    kept: list[Entity] = []
    for entity in entities:
        if kept and entity.start < kept[-1].end:
            kept[-1] = max(kept[-1], entity, key=lambda one: one.score)
        elif entity.text:
            kept.append(entity)
    return kept


def _check(labels: Sequence[str], threshold: float) -> None:
    if isinstance(labels, str) or not labels or not all(label.strip() for label in labels):
        raise InvalidRequest(
            f"labels is {labels!r}: give a list of words, such as ['person', 'city']", param="labels"
        )
    if len(set(labels)) < len(labels):
        raise InvalidRequest(f"labels names one twice: {', '.join(labels)[:200]}", param="labels")
    if not 0 < threshold < 1:
        raise InvalidRequest(f"threshold is {threshold}, it must be between 0 and 1", param="threshold")


def _entity(text: str, written: Labeled, span: Span, labels: Sequence[str]) -> Entity:
    start, end = written.characters[span.first][0], written.characters[span.last][1]
    return Entity(start, end, labels[span.label], text[start:end], span.score)


def write_labels(
    tokenizer: Tokenizer, text: str, labels: Sequence[str], label_mark: str, text_mark: str
) -> Labeled:
    """A marker and the words of each label, then another marker and the text."""
    ids, marks = ([] if tokenizer.bos_id is None else [tokenizer.bos_id]), list[int]()
    for label in labels:
        marks.append(len(ids))
        ids += [_id_of(tokenizer, label_mark)]
        ids += tokenizer.encode(f" {label}", add_special=False, parse_special=False)
    own, places = tokenizer.encode_with_places(text)
    characters = [_without_blanks(text, *place) for place in places]
    return Labeled([*ids, _id_of(tokenizer, text_mark), *own], marks, len(ids) + 1, characters)


def _id_of(tokenizer: Tokenizer, mark: str) -> int:
    found = tokenizer.id_of(mark)
    if found is None:
        raise UnsupportedModel(f"the tokenizer of this tagger has no token {mark!r} that its head needs")
    return found


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    return start, end


def best_spans(chances: Array, threshold: float, longest: int) -> list[Span]:
    """The likeliest non-overlapping spans of `chances` [tokens, labels, 3]. A span's score is the
    geometric mean of its start, its end and the mean of its inside scores.
    """
    found: list[Span] = []
    for label in range(chances.shape[1]):
        starts, ends, insides = (chances[:, label, part] for part in (START, END, INSIDE))
        inside = np.concatenate([[0.0], np.cumsum(insides)])
        for first in map(int, np.flatnonzero(starts > threshold / 2)):
            for last in map(int, np.flatnonzero(ends[first : first + longest] > threshold / 2) + first):
                mean = (inside[last + 1] - inside[first]) / (last + 1 - first)
                score = float(starts[first] * ends[last] * mean) ** (1 / 3)
                if score > threshold:
                    found.append(Span(first, last, label, score))
    taken = np.zeros(len(chances), bool)
    kept: list[Span] = []
    for span in sorted(found, key=lambda span: (-span.score, span.first, span.last)):
        if not taken[span.first : span.last + 1].any():
            taken[span.first : span.last + 1] = True
            kept.append(span)
    return sorted(kept, key=lambda span: span.first)
