"""Cohere's body of /v1/classify: labels by the model, or by examples that come with the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from headrace.api.cohere.schema import ClassifiedInput, CohereClassifications, LabelConfidence, meta_of
from headrace.api.service import new_id
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.classify import classify
from headrace.tasks.few_shot import MAX_EXAMPLES, classify_by_examples
from headrace.tasks.label_scores import Classification


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A text and its label."""

    text: str
    label: str


Examples = Annotated[list[Example], Meta(min_length=1, max_length=MAX_EXAMPLES)]


async def cohere_classified(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    examples: Sequence[Example] | None,
    call: CallContext,
    *,
    truncate: bool,
) -> CohereClassifications:
    """The reply for texts, by a regression on the vectors of `examples` where there are any."""
    if examples is None:
        found = await classify(runner, name, texts, call, truncate=truncate)
    else:
        pairs = [(one.text, one.label) for one in examples]
        found = await classify_by_examples(runner, name, texts, pairs, call, truncate=truncate)
    written = [_written(text, one) for text, one in zip(texts, found, strict=True)]
    return CohereClassifications(new_id("classify"), written, meta_of(call, "1", classifications=len(texts)))


def _written(text: str, one: Classification) -> ClassifiedInput:
    return ClassifiedInput(
        id=new_id("input"),
        input=text,
        prediction=one.label,
        predictions=[one.label],
        confidence=one.score,
        confidences=[one.score],
        labels={label: LabelConfidence(score) for label, score in zip(one.labels, one.scores, strict=True)},
    )
