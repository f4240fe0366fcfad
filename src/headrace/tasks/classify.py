"""Texts to labels: sequence classifiers, cross-encoders, reward models, regressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.ops.value import Array
from headrace.weights.head import Activation, Head

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


async def classify(
    runner: ModelRunner,
    name: str | None,
    inputs: Sequence[str | TextPair],
    call: CallContext,
    *,
    truncate: bool = False,
    raw: bool = False,
) -> list[Classification]:
    """What the classifier `name` says of each text or pair; `raw` scores are logits.

    Raises InvalidRequest where the model classifies no texts, ContextLengthExceeded for a text that is too
    long unless it may be cut (`truncate`).
    """
    async with runner.lease(name, call, "classify") as model:
        head = model.head
        assert head is not None
        request = EmbeddingRequest(
            id=new_id(), model=model.name, inputs=tuple(inputs), task="classify", truncate=truncate
        )
        rows = await runner.rows(request, call)
    return [classification(head, row[0], raw=raw) for row in rows]


def classification(head: Head, logits: Array, *, raw: bool = False) -> Classification:
    """The result of one row of logits [labels]."""
    return best_label(logits if raw else activated(logits, head.activation), head.labels)


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
