"""The head of GLiNER in NumPy: states of words in context, and the scores of spans by labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.ops.value import Array
from headrace.weights.gliner_head import GlinerHead, LstmDirection, TokenScorer
from headrace.weights.head_tensors import SpanScorer

_PAIR_ROWS = 8192
"""Pairs of a word and a label that are scored together: each has a row of 4 * hidden numbers."""


class BoundaryScores(Struct, frozen=True, eq=False):
    """Probabilities [words, labels] that an entity of the label starts, ends, or goes on at the word."""

    start: Array
    end: Array
    inside: Array


def contextual(head: GlinerHead, words: Sequence[Array]) -> list[Array]:
    """States [words, hidden] of several texts after the LSTM; as they are where there is none."""
    parts = list(words)
    for forward, backward in head.lstm:
        ahead = _lstm(forward, parts)
        reversed_parts: list[Array] = [part[::-1] for part in parts]
        back: list[Array] = [one[::-1] for one in _lstm(backward, reversed_parts)]
        parts = [_side_by_side(*both) for both in zip(ahead, back, strict=True)]
    return parts


def _side_by_side(one: Array, other: Array) -> Array:
    return np.concatenate([one, other], axis=1)


def _lstm(direction: LstmDirection, texts: Sequence[Array]) -> list[Array]:
    """The hidden states of an LSTM over each text, all texts a step at a time."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    lengths = np.array([len(texts[index]) for index in order])
    size = len(direction.hidden)
    inputs = direction.inputs(np.concatenate([texts[index] for index in order]))
    starts = np.cumsum(lengths) - lengths
    found = np.empty((len(inputs), size), np.float32)
    hidden: Array = np.zeros((len(order), size), np.float32)
    cell: Array = np.zeros((len(order), size), np.float32)
    for step in range(int(lengths.max(initial=0))):
        going = int(np.searchsorted(-lengths, -step))  # the texts that are longer than that
        rows = starts[:going] + step
        gates = inputs[rows] + hidden[:going] @ direction.hidden
        taken, kept, new, given = (gates[:, part * size : (part + 1) * size] for part in range(4))
        cell[:going] = sigmoid(kept) * cell[:going] + sigmoid(taken) * np.tanh(new)
        hidden[:going] = sigmoid(given) * np.tanh(cell[:going])
        found[rows] = hidden[:going]
    parts = np.split(found, starts[1:])
    return [parts[place] for place in np.argsort(order)]


def sigmoid(x: NDArray[np.floating]) -> Array:
    """1 / (1 + exp(-x)), which never overflows."""
    return (0.5 * np.tanh(0.5 * x) + 0.5).astype(np.float32)


def label_vectors(head: GlinerHead, states: Array) -> Array:
    """Of states [texts, labels, hidden] at the labels' marks what words are compared with."""
    texts, labels, size = states.shape
    rows = states.reshape(-1, size)
    if head.label is not None:
        rows = head.label(rows)
    return rows.reshape(texts, labels, -1)


def span_scores(scorer: SpanScorer, words: Sequence[Array], labels: Array, longest: int) -> Iterator[Array]:
    """Of each text the probabilities [widths, words, labels] that the spans of 1 to `longest` words which
    begin at each word are entities; 0 for spans that end behind the text.

    Exact, and without a vector of each span: the first layer of `out` is applied to starts and ends apart,
    the second one to the labels.
    """
    hidden = labels.shape[2]
    weight, last = scorer.out.first.weight, scorer.out.second
    rows = np.concatenate(words)
    starts = np.maximum(scorer.start(rows), 0) @ weight[:hidden] + scorer.out.first.bias
    ends = np.maximum(scorer.end(rows), 0) @ weight[hidden:]
    keys, constants = labels @ last.weight.T, labels @ last.bias
    begin = 0
    for text, one in enumerate(words):
        count = len(one)
        found = np.zeros((min(longest, count), count, len(keys[text])), np.float32)
        own, theirs = starts[begin : begin + count], ends[begin : begin + count]
        for width in range(len(found)):
            pairs = own[: count - width] + theirs[width:]
            scores = np.maximum(pairs, 0, out=pairs) @ keys[text].T + constants[text]
            found[width, : count - width] = sigmoid(scores)
        begin += count
        yield found


def token_scores(scorer: TokenScorer, words: Sequence[Array], labels: Array) -> Iterator[BoundaryScores]:
    """Of each text what its words are for each label.

    Exact: the first layer of `out` reads the word, the label, and the product of both, each with its own part
    of the weights.
    """
    hidden = labels.shape[2]
    of_word, of_label, of_both = np.split(scorer.out.first.weight, 3)
    rows = scorer.word(np.concatenate(words))
    first, second = rows[:, :hidden] @ of_word + scorer.out.first.bias, rows[:, hidden:]
    vectors = scorer.label(labels.reshape(-1, hidden)).reshape(*labels.shape[:2], -1)
    firsts, seconds = vectors[:, :, :hidden] @ of_label, vectors[:, :, hidden:]
    begin = 0
    for text, one in enumerate(words):
        end = begin + len(one)
        found = np.empty((len(one), labels.shape[1], 3), np.float32)
        step = max(1, _PAIR_ROWS // labels.shape[1])
        for start in range(0, len(one), step):
            part = slice(begin + start, min(begin + start + step, end))
            products = (second[part, None] * seconds[text]) @ of_both
            inner = np.maximum(products + first[part, None] + firsts[text], 0)
            found[start : start + step] = sigmoid(scorer.out.second(inner))
        begin = end
        yield BoundaryScores(*np.moveaxis(found, 2, 0))
