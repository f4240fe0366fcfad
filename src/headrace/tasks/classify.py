"""Texts to labels: sequence classifiers, cross-encoders, reward models, regressions, fitted classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, TextPair, Truncation
from headrace.ops.value import Array
from headrace.tasks.few_shot import fitted_logits
from headrace.tasks.label_scores import Classification, activated, best_label
from headrace.weights.head import Activation, Head

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


async def classify(
    runner: ModelRunner,
    name: str | None,
    inputs: Sequence[str | TextPair],
    call: CallContext,
    *,
    truncate: bool | Truncation = False,
    raw: bool = False,
    activation: Activation | None = None,
) -> list[Classification]:
    """What the classifier `name` says of each text or pair; `raw` scores are logits, `activation` takes the
    place of the head's own.

    Raises InvalidRequest where the model classifies no texts, ContextLengthExceeded for a text that is too
    long unless it may be cut (`truncate`).
    """
    async with runner.lease(name, call, "classify") as model:
        head = model.head
        assert head is not None
        if head.kind == "fitted":
            _check_single(inputs, model)
        request = EmbeddingRequest(
            id=new_id(), model=model.name, inputs=tuple(inputs), task="classify", truncate=truncate
        )
        rows = await runner.rows(request, call)
    if activation is not None:
        head = replace(head, activation=activation)
    if head.kind == "fitted" and rows:
        rows = fitted_logits(model, np.concatenate(rows))[:, None]
    return [classification(head, row[0], raw=raw) for row in rows]


def _check_single(inputs: Sequence[str | TextPair], model: LoadedModel) -> None:
    if any(isinstance(one, TextPair) for one in inputs):
        raise InvalidRequest(f"{model.name} classifies texts, not pairs: send texts", param="input")


def classification(head: Head, logits: Array, *, raw: bool = False) -> Classification:
    """The result of one row of logits [labels]."""
    return best_label(logits if raw else activated(logits, head.activation), head.labels)
