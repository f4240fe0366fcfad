"""Labels that no model was trained for: by a model of entailment (Yin et al. 2019) or one that reads them all
with the text (GLiNER 2), by the vectors of an embedder, or by a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.engine.unit_rows import unit_rows
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, TextPair, Truncation
from headrace.tasks.choose import choose_each
from headrace.tasks.classify import classify
from headrace.tasks.label_scores import Classification, activated, best_label
from headrace.tasks.schema_classify import schema_classify
from headrace.tasks.task_limits import check_label_characters, check_labels, check_texts
from headrace.weights.head import is_entailment

TEMPLATE = "This example is {}."
SHARPNESS = 20.0  # of the softmax over cosines, which lie close together
MAX_PAIRS = 100_000
"""Of texts and labels whose vectors are compared."""
MAX_JUDGED_PAIRS = 4096
"""Of texts and labels that a model of entailment or a decoder reads one by one."""
_QUESTION = "{text}\n\nWhich of these fits best: {labels}?\nAnswer:"


async def zero_shot(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    labels: Sequence[str],
    call: CallContext,
    *,
    hypothesis_template: str = TEMPLATE,
    multi_label: bool = False,
    truncate: bool | Truncation = False,
) -> list[Classification]:
    """The probability of each label for each text: of all labels together, or with `multi_label` of each.

    A label becomes the hypothesis that `hypothesis_template` makes of it. As ZeroShotClassificationPipeline
    of transformers for models of entailment. Raises InvalidRequest for arguments that mean nothing and for
    models that can do none of this.
    """
    check_texts(texts, "input")
    check_labels(labels)
    check_label_characters(labels, len(texts))
    if hypothesis_template.count("{}") != 1:
        raise InvalidRequest(
            f"hypothesis_template is {hypothesis_template!r:.200}: write {{}} once, where the label goes",
            param="hypothesis_template",
        )
    _check_pairs(len(texts), len(labels), MAX_PAIRS)
    written = [hypothesis_template.replace("{}", label) for label in labels]
    name = name or runner.able("zero_shot") or runner.able("embed") or runner.able("generate")
    async with runner.lease(name, call, "classify", "zero_shot", "embed", "generate") as model:
        name = model.name  # the one that was found, where none was named
        if "zero_shot" in model.tasks and "entities" in model.tasks:
            if hypothesis_template != TEMPLATE:
                call.warn("hypothesis_template", f"{name} reads the labels as they are")
            return await schema_classify(
                runner, model, texts, tuple(labels), call, multi_label=multi_label, truncate=truncate
            )
        if model.head is not None and "classify" in model.tasks:
            _check_pairs(len(texts), len(labels), MAX_JUDGED_PAIRS)
            entails = entailment_index(model.head.labels, name)
            return await _entailed(
                runner,
                name,
                entails,
                texts,
                tuple(labels),
                written,
                call,
                multi_label=multi_label,
                truncate=truncate,
            )
        if "embed" in model.tasks:
            call.warn(
                "model", f"{model.name} is an embedder: labels are compared with texts by their vectors"
            )
            return await _by_vectors(
                runner, name, texts, tuple(labels), written, call, multi_label=multi_label, truncate=truncate
            )
    if isinstance(truncate, Truncation):
        raise InvalidRequest(
            f"{truncate.param} is for encoders, {name} generates text: leave it out", param=truncate.param
        )
    if multi_label:
        raise InvalidRequest(
            "multi_label needs a model of entailment or an embedder, a decoder chooses one label",
            param="multi_label",
        )
    if hypothesis_template != TEMPLATE:
        call.warn("hypothesis_template", f"{name} generates text and reads the labels as they are")
    _check_pairs(len(texts), len(labels), MAX_JUDGED_PAIRS)
    asked = ", ".join(labels)
    prompts = [_QUESTION.format(text=text, labels=asked) for text in texts]
    try:
        return await choose_each(runner, name, prompts, labels, call)
    except InvalidRequest as error:  # the prompt is ours: its text is what was sent
        if error.param == "prompt":
            error.param = "input"
        raise


def _check_pairs(texts: int, labels: int, most: int) -> None:
    if texts * labels > most:
        raise InvalidRequest(
            f"{texts:,} texts times {labels:,} labels are {texts * labels:,} pairs, this model compares"
            f" at most {most:,} at once: send fewer texts or labels",
            param="labels",
        )


def entailment_index(labels: Sequence[str], name: str) -> int:
    """Which output says that the second text follows from the first."""
    for index, label in enumerate(labels):
        if is_entailment(label):
            return index
    raise InvalidRequest(
        f"{name} has the labels {', '.join(labels[:10])[:200]} and none is entailment: leave labels out, or"
        " name a model of natural language inference",
        param="labels",
    )


async def _entailed(
    runner: ModelRunner,
    name: str | None,
    entails: int,
    texts: Sequence[str],
    labels: tuple[str, ...],
    written: Sequence[str],
    call: CallContext,
    *,
    multi_label: bool,
    truncate: bool | Truncation,
) -> list[Classification]:
    pairs = [TextPair(text, hypothesis) for text in texts for hypothesis in written]
    found = await classify(runner, name, pairs, call, truncate=truncate, raw=True)
    logits = np.array([one.scores for one in found], np.float32).reshape(len(texts), len(labels), -1)
    if multi_label or len(labels) == 1:
        against = 0 if entails else -1  # as the pipeline: contradiction is the other end
        scores = activated(logits[:, :, [against, entails]], "softmax")[:, :, 1]
    else:
        scores = activated(logits[:, :, entails], "softmax")
    return [best_label(row, labels) for row in scores]


async def _by_vectors(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    labels: tuple[str, ...],
    written: Sequence[str],
    call: CallContext,
    *,
    multi_label: bool,
    truncate: bool | Truncation,
) -> list[Classification]:
    request = EmbeddingRequest(id=new_id(), model=name, inputs=(*texts, *written), truncate=truncate)
    vectors = unit_rows(np.concatenate(await runner.rows(request, call)))
    cosines = vectors[: len(texts)] @ vectors[len(texts) :].T
    scores = (1 + cosines) / 2 if multi_label else activated(cosines * np.float32(SHARPNESS), "softmax")
    return [best_label(row, labels) for row in scores]
