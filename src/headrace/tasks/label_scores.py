"""Scores of labels."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.ops.value import Array
from headrace.weights.head import Activation

Doubles = NDArray[np.float64]


class Classification(Struct, frozen=True):
    """`scores` of all `labels`, in the model's order; `label` is the one with the highest score.

    A model with one label gives a score, such as how well a document answers a query.
    """

    label: str
    scores: tuple[float, ...]
    labels: tuple[str, ...]

    @property
    def score(self) -> float:
        """The score of `label`."""
        return max(self.scores)


def best_label(scores: Array | Doubles, labels: tuple[str, ...]) -> Classification:
    """The result of scores [labels]."""
    return Classification(labels[int(np.argmax(scores))], tuple(map(float, scores)), labels)


def activated(logits: Array | Doubles, activation: Activation) -> Doubles:
    """Logits [..., labels] as probabilities: of all labels together, of each, or as they are.

    In float64, where a probability close to 1 is not rounded to it.
    """
    wide = logits.astype(np.float64)
    if activation == "identity":
        return wide
    if activation == "sigmoid":
        with np.errstate(over="ignore"):  # 1 / inf = 0 is the correct limit
            return 1 / (1 + np.exp(-wide))
    exponentials = np.exp(wide - wide.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
