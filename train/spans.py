"""From scores of tokens to entities of a text: tokens with their characters, the best spans, F1."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from data.entities import Entity, Tagged
from tokenizers import Tokenizer

LABEL_MARK, TEXT_MARK = "<|tool|>", "<|user|>"
START, END, INSIDE = 0, 1, 2
LONGEST_SPAN = 48  # tokens
THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text behind its labels, as the tagger reads it: ids, where each label's mark is, where the text
    begins, and which characters of it each of its tokens is."""

    ids: list[int]
    marks: list[int]
    begin: int
    characters: list[tuple[int, int]]


def encode(tokenizer: Tokenizer, text: str, labels: Sequence[str]) -> Encoded:
    """A mark and the words of each label, then another mark and the text."""
    label_mark, text_mark = tokenizer.token_to_id(LABEL_MARK), tokenizer.token_to_id(TEXT_MARK)
    ids, marks = [0], []
    for label in labels:
        marks.append(len(ids))
        ids += [label_mark, *tokenizer.encode(f" {label}", add_special_tokens=False).ids]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    characters = [_without_blanks(text, *place) for place in encoding.offsets]
    return Encoded([*ids, text_mark, *encoding.ids], marks, len(ids) + 1, characters)


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    return start, end


def wanted_scores(encoded: Encoded, entities: Sequence[Entity], labels: Sequence[str]) -> np.ndarray:
    """1 where a token of the text begins, ends or is in an entity of a label: [tokens, labels, 3]."""
    wanted = np.zeros((len(encoded.characters), len(labels), 3), np.float32)
    for entity in entities:
        tokens = [
            i for i, (a, b) in enumerate(encoded.characters) if a < entity.end and b > entity.start and b > a
        ]
        if tokens and entity.label in labels:
            label = labels.index(entity.label)
            wanted[tokens[0], label, START] = wanted[tokens[-1], label, END] = 1
            wanted[tokens, label, INSIDE] = 1
    return wanted


def best_spans(chances: np.ndarray, encoded: Encoded, labels: Sequence[str]) -> list[Entity]:
    """Entities of chances [tokens, labels, 3]: the likeliest spans that do not overlap. A span's chance is
    the geometric mean of its start, its end and the mean of what is inside."""
    found: list[tuple[float, int, int, str]] = []
    for number, label in enumerate(labels):
        inside = np.concatenate([[0.0], np.cumsum(chances[:, number, INSIDE])])
        for first in np.flatnonzero(chances[:, number, START] > THRESHOLD / 2):
            ends = np.flatnonzero(chances[first : first + LONGEST_SPAN, number, END] > THRESHOLD / 2) + first
            for last in ends:
                mean = (inside[last + 1] - inside[first]) / (last + 1 - first)
                chance = (chances[first, number, START] * chances[last, number, END] * mean) ** (1 / 3)
                if chance > THRESHOLD:
                    found.append((float(chance), int(first), int(last), label))
    taken = np.zeros(len(chances), bool)
    entities: list[Entity] = []
    for _, first, last, label in sorted(found, key=lambda span: (-span[0], span[1], span[2])):
        if not taken[first : last + 1].any():
            taken[first : last + 1] = True
            entities.append(Entity(encoded.characters[first][0], encoded.characters[last][1], label))
    return sorted(entities, key=lambda entity: entity.start)


def f1(found: Sequence[Sequence[Entity]], texts: Sequence[Tagged]) -> float:
    """Of entities that are equal in place and label, over all texts together."""
    right = sum(len(set(mine) & set(text.entities)) for mine, text in zip(found, texts, strict=True))
    said = sum(len(mine) for mine in found)
    there = sum(len(text.entities) for text in texts)
    return 2 * right / max(said + there, 1)
