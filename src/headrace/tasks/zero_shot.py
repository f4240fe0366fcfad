"""Texts to labels that come with the request: by natural language inference, or by vectors of the labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.ops.value import Array
from headrace.tasks.classify import Classification, activated, classify
from headrace.weights.head import TaskName

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

TEMPLATE = "This example is {}."  # as the pipeline of transformers has it
MAX_LABELS = 1000
MAX_PAIRS = 8192  # texts times labels
COSINE_TEMPERATURE = 0.05
"""By which cosines are divided before their softmax, as in the training of most embedders."""
_ABLE: tuple[TaskName, ...] = ("classify", "embed")


async def zero_shot(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    labels: Sequence[str],
    call: CallContext,
    *,
    template: str = TEMPLATE,
    multi_label: bool = False,
    truncate: bool = False,
) -> list[Classification]:
    """How likely each label is for each text; `template` has `{}` where the label goes.

    A model of natural language inference reads every text with every label (Yin et al. 2019): the
    probabilities of entailment among the labels, or with `multi_label` of each label against contradiction.
    An embedder compares vectors: a softmax of cosines divided by COSINE_TEMPERATURE, or with `multi_label`
    the cosines themselves.
    """
    _check(texts, labels, template)
    async with runner.lease(name, call, *_ABLE) as model:
        if model.head is None:
            rows = await _by_vectors(runner, model, texts, labels, call, multi_label, truncate)
        else:
            written = [template.replace("{}", label) for label in labels]
            rows = await _by_inference(runner, model, texts, written, call, multi_label, truncate)
    names = tuple(labels)
    return [Classification(names[int(np.argmax(row))], tuple(map(float, row)), names) for row in rows]


async def _by_inference(
    runner: ModelRunner,
    model: LoadedModel,
    texts: Sequence[str],
    hypotheses: Sequence[str],
    call: CallContext,
    multi_label: bool,
    truncate: bool,
) -> Array:
    entailment, contradiction = inference_labels(model)
    pairs = [TextPair(text, hypothesis) for text in texts for hypothesis in hypotheses]
    found = await classify(runner, model.name, pairs, call, truncate=truncate, raw=True)
    logits = np.array([one.scores for one in found], np.float32).reshape(len(texts), len(hypotheses), -1)
    if multi_label or len(hypotheses) == 1:
        return activated(logits[..., [contradiction, entailment]], "softmax")[..., 1]
    return activated(logits[..., entailment], "softmax")


async def _by_vectors(
    runner: ModelRunner,
    model: LoadedModel,
    texts: Sequence[str],
    labels: Sequence[str],
    call: CallContext,
    multi_label: bool,
    truncate: bool,
) -> Array:
    inputs = (*texts, *labels)
    request = EmbeddingRequest(id=new_id(), model=model.name, inputs=inputs, truncate=truncate)
    vectors = np.concatenate(await runner.rows(request, call))
    cosines = vectors[: len(texts)] @ vectors[len(texts) :].T
    return cosines if multi_label else activated(cosines / np.float32(COSINE_TEMPERATURE), "softmax")


def inference_labels(model: LoadedModel) -> tuple[int, int]:
    """The places of entailment and contradiction among a model's labels. InvalidRequest where it has none
    that says entailment."""
    assert model.head is not None
    labels = [label.lower() for label in model.head.labels]
    entailment = next((at for at, label in enumerate(labels) if label.startswith("entail")), None)
    if entailment is None or len(labels) < 2:
        raise InvalidRequest(
            f"{model.name} has labels of its own ({', '.join(model.head.labels[:5])}): leave labels out, or"
            " name a model of natural language inference or an embedder",
            param="labels",
        )
    denied = next((at for at, label in enumerate(labels) if label.startswith("contra")), None)
    return entailment, (0 if entailment else len(labels) - 1) if denied is None else denied


def _check(texts: Sequence[str], labels: Sequence[str], template: str) -> None:
    if not 0 < len(labels) <= MAX_LABELS:
        raise InvalidRequest(
            f"labels has {len(labels):,} entries, it must have 1 to {MAX_LABELS:,}", param="labels"
        )
    if not all(label.strip() for label in labels) or len(set(labels)) < len(labels):
        raise InvalidRequest("labels has an empty label, or one twice", param="labels")
    if len(texts) * len(labels) > MAX_PAIRS:
        raise InvalidRequest(
            f"{len(texts):,} texts with {len(labels):,} labels are {len(texts) * len(labels):,} pairs, at"
            f" most {MAX_PAIRS:,} are read at a time: split the texts",
            param="input",
        )
    if "{}" not in template:
        raise InvalidRequest(
            "hypothesis_template has no {}, which the label takes the place of", param="hypothesis_template"
        )
