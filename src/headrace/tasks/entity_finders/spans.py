"""From scores of spans to those that are entities: the likeliest first, and what overlaps is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import InvalidRequest, NumericalError
from headrace.ops.value import Array

Ints = NDArray[np.int64]
MAX_CANDIDATES = 1 << 20  # of one text, far more than any sensible threshold lets through
_SHIFT = 32  # a span is one number: its first unit, then its last


class Span(Struct, frozen=True):
    """Units [first, last] of the text, with the probability that they are an entity of label `label`."""

    first: int
    last: int
    label: int
    score: float


class Candidates(Struct, frozen=True, eq=False):
    """Spans above the threshold, in columns; `spans` holds `first << 32 | last`."""

    spans: Ints
    labels: Ints
    scores: Array

    def __len__(self) -> int:
        return len(self.spans)

    def moved(self, by: int) -> Candidates:
        """The same spans, `by` units further on."""
        return Candidates(self.spans + ((by << _SHIFT) + by), self.labels, self.scores)


def check_finite(scores: Array) -> Array:
    """The scores; NumericalError where a damaged model gave others than numbers."""
    if not np.isfinite(scores).all():
        raise NumericalError(
            "the scores of spans are not all numbers (NaN or infinite): the weights of the encoder or of its"
            " head are damaged"
        )
    return scores


def keys_of(first: Ints, last: Ints) -> Ints:
    """Spans as single numbers, in the order of their beginnings."""
    return (first << _SHIFT) | last


def gathered(by_label: Iterable[tuple[int, Ints, Array]], *, every_label: bool) -> Candidates:
    """The candidates of all labels, each with spans and scores; unless `every_label`, the best label of each
    span. InvalidRequest for more than MAX_CANDIDATES."""
    found = joined([])
    waiting: list[Candidates] = []
    for label, spans, scores in by_label:
        if not len(spans):
            continue
        waiting.append(Candidates(spans, np.full(len(spans), label), scores))
        if sum(map(len, waiting)) > MAX_CANDIDATES:
            found, waiting = _limited([found, *waiting], every_label), []
    return _limited([found, *waiting], every_label)


def _limited(parts: Sequence[Candidates], every_label: bool) -> Candidates:
    whole = joined(parts)
    found = whole if every_label else best_labels(whole)
    if len(found) > MAX_CANDIDATES:
        raise InvalidRequest(
            f"more than {MAX_CANDIDATES:,} spans of one text are above the threshold: raise it",
            param="threshold",
        )
    return found


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of several parts of a text as one."""
    return Candidates(
        np.concatenate([np.empty(0, np.int64), *(part.spans for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.labels for part in parts)]),
        np.concatenate([np.empty(0, np.float32), *(part.scores for part in parts)]),
    )


def best_labels(found: Candidates) -> Candidates:
    """Of each span the label with the highest score, of equal ones the first."""
    order = np.lexsort((found.labels, -found.scores, found.spans))
    spans = found.spans[order]
    kept = order[np.flatnonzero(np.r_[True, spans[1:] != spans[:-1]])] if len(order) else order
    return Candidates(found.spans[kept], found.labels[kept], found.scores[kept])


def choose_spans(found: Candidates, *, flat: bool, every_label: bool) -> list[Span]:
    """Spans by falling score, each unless it overlaps one before it; in the order of the text.

    Not `flat`: a span may lie inside another. `every_label`: a span may have all labels that it is a
    candidate for.
    """
    best = best_labels(found)
    order = np.lexsort((best.spans, -best.scores))
    kept = _flat(best, order) if flat else _nested(best, order)
    chosen = _with_labels(found, best.spans[kept]) if every_label else _taken(best, kept)
    spans = [
        Span(int(key) >> _SHIFT, int(key) & 0xFFFFFFFF, int(label), float(score))
        for key, label, score in zip(chosen.spans, chosen.labels, chosen.scores, strict=True)
    ]
    return sorted(spans, key=lambda span: (span.first, span.last, -span.score))


def _taken(found: Candidates, places: Sequence[int] | Ints) -> Candidates:
    return Candidates(found.spans[places], found.labels[places], found.scores[places])


def _with_labels(found: Candidates, spans: Ints) -> Candidates:
    """All labels of these spans, of each the highest score (overlapping windows score a span twice)."""
    mine = _taken(found, np.flatnonzero(np.isin(found.spans, spans)))
    order = np.lexsort((-mine.scores, mine.labels, mine.spans))
    same = np.r_[False, (np.diff(mine.spans[order]) == 0) & (np.diff(mine.labels[order]) == 0)]
    return _taken(mine, order[~same[: len(order)]])


def _flat(found: Candidates, order: Ints) -> Ints:
    firsts, lasts = found.spans >> _SHIFT, found.spans & 0xFFFFFFFF
    taken = np.zeros(int(lasts.max(initial=-1)) + 1, bool)
    kept: list[int] = []
    for place in order.tolist():
        units = taken[firsts[place] : lasts[place] + 1]
        if not units.any():
            units[:] = True
            kept.append(place)
    return np.array(kept, np.int64)


def _nested(found: Candidates, order: Ints) -> Ints:
    firsts, lasts = found.spans >> _SHIFT, found.spans & 0xFFFFFFFF
    kept = np.empty(len(order), np.int64)
    count = 0
    for place in order:
        first, last = firsts[place], lasts[place]
        ones, others = firsts[kept[:count]], lasts[kept[:count]]
        crosses = ((ones < first) & (first <= others) & (others < last)) | (
            (first < ones) & (ones <= last) & (last < others)
        )
        if not crosses.any():
            kept[count] = place
            count += 1
    return kept[:count]
