"""Scores of tokens for labels into entities, as the token-classification pipeline of `transformers` does:
B-, I- and O, and beyond it the schemes with ends and single tokens (BIOES, BILOU).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from headrace.ops.value import Array

Aggregation = Literal["none", "simple", "first", "average", "max"]
"""Each token of its own; neighbors of one label; these with one label for each word, that of the word's first
token, of its tokens' mean scores, of its token with the highest score."""

OUTSIDE = "O"
_PREFIX = re.compile(r"[BIESLUM]-.")
_BEGINS, _ENDS = frozenset("BSU"), frozenset("ESLU")


class TokenEntity(Struct, frozen=True):
    """Characters [start, end) of a text; `score` in (0, 1). With aggregation `none` a token with its whole
    label ("B-PER")."""

    start: int
    end: int
    label: str
    score: float


class TokenScores(Struct, frozen=True, eq=False):
    """A token's characters [start, end), whether it continues a word, and its probability of each label."""

    start: int
    end: int
    inside_word: bool
    scores: Array


def read_entities(
    tokens: Sequence[TokenScores], labels: Sequence[str], aggregation: Aggregation
) -> list[TokenEntity]:
    """The entities in the tokens of a text, in order; those of label `O` are left out."""
    parts = list(tokens)
    if aggregation not in ("none", "simple"):
        parts = [_word(word, aggregation) for word in _words(parts)]
    named = [_entity(part, labels) for part in parts]
    if aggregation != "none":
        named = _grouped(named, _scheme(labels))
    return [entity for entity in named if entity.label != OUTSIDE]


def _words(tokens: Sequence[TokenScores]) -> Iterator[list[TokenScores]]:
    word: list[TokenScores] = []
    for token in tokens:
        if word and not token.inside_word:
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def _word(tokens: list[TokenScores], aggregation: Aggregation) -> TokenScores:
    if aggregation == "first":
        scores = tokens[0].scores
    elif aggregation == "max":
        scores = max(tokens, key=lambda token: float(token.scores.max())).scores
    else:
        scores = np.stack([token.scores for token in tokens]).mean(0)
    return TokenScores(tokens[0].start, tokens[-1].end, False, scores)


def _entity(token: TokenScores, labels: Sequence[str]) -> TokenEntity:
    best = int(token.scores.argmax())
    return TokenEntity(token.start, token.end, labels[best], float(token.scores[best]))


def _scheme(labels: Sequence[str]) -> frozenset[str]:
    """The prefixes that mean something: all of them only where every label has one."""
    named = [label for label in labels if label != OUTSIDE]
    return frozenset("BIESLUM") if all(_PREFIX.match(label) for label in named) else frozenset("BI")


def _split(label: str, scheme: frozenset[str]) -> tuple[str, str]:
    """Prefix and name; a label without a prefix is inside."""
    return (label[0], label[2:]) if label[1:2] == "-" and label[0] in scheme else ("I", label)


def names_of(labels: Sequence[str]) -> dict[str, str]:
    """By each label of a model, such as B-PER, the name of its entities."""
    scheme = _scheme(labels)
    return {label: _split(label, scheme)[1] for label in labels if label != OUTSIDE}


def _grouped(entities: Sequence[TokenEntity], scheme: frozenset[str]) -> list[TokenEntity]:
    groups: list[list[TokenEntity]] = []
    last_prefix, last_name = "", ""
    for entity in entities:
        prefix, name = _split(entity.label, scheme)
        if groups and name == last_name and prefix not in _BEGINS and last_prefix not in _ENDS:
            groups[-1].append(entity)
        else:
            groups.append([entity])
        last_prefix, last_name = prefix, name
    return [_group(group, scheme) for group in groups]


def _group(group: list[TokenEntity], scheme: frozenset[str]) -> TokenEntity:
    score = float(np.mean([entity.score for entity in group]))
    return TokenEntity(group[0].start, group[-1].end, _split(group[0].label, scheme)[1], score)


def merged(entities: Sequence[TokenEntity]) -> list[TokenEntity]:
    """Entities of windows that overlap, of which the longest of those that begin inside of another stays, of
    equally long ones the likeliest."""
    kept: list[TokenEntity] = []
    for entity in sorted(entities, key=lambda one: one.start):
        last = kept[-1] if kept else None
        if last is None or not last.start <= entity.start < last.end:
            kept.append(entity)
        elif (entity.end - entity.start, entity.score) > (last.end - last.start, last.score):
            kept[-1] = entity
    return kept
