"""Training targets of a tagger, and metrics of its output."""

from collections.abc import Sequence

import numpy as np
from data.entities import Entity, Tagged
from msgspec import Struct

from headrace.tasks.entity_finders.tagger import END, INSIDE, START

LABEL_MARK, TEXT_MARK = "<|tool|>", "<|user|>"
LONGEST_SPAN = 48  # tokens
WINDOW = 96  # tokens of a piece of a long text: about the longest rows of training, without their labels


class Labeled(Struct, frozen=True):
    """Labels followed by a text: token ids, the position of each label's marker, where the text begins, and
    the characters of each of its tokens.
    """

    ids: list[int]
    marks: list[int]
    begin: int
    characters: list[tuple[int, int]]


def wanted_scores(encoded: Labeled, entities: Sequence[Entity], labels: Sequence[str]) -> np.ndarray:
    """1 where a token of the text begins, ends or is inside an entity of a label: [tokens, labels, 3]."""
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


def f1(found: Sequence[Sequence[Entity]], texts: Sequence[Tagged]) -> float:
    """F1 of entities with equal position and label, over all texts together."""
    right = sum(len(set(mine) & set(text.entities)) for mine, text in zip(found, texts, strict=True))
    said = sum(len(mine) for mine in found)
    there = sum(len(text.entities) for text in texts)
    return 2 * right / max(said + there, 1)
