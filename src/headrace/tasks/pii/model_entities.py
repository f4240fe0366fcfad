"""Entities that a model finds, such as names, beside those of patterns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.entities import extract_entities
from headrace.tasks.pii.analyzer import MODEL_LABELS
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.redaction import Redacted, Redactor

_SHORT = {"PER": "PERSON", "LOC": "LOCATION", "GPE": "LOCATION", "ORG": "ORGANIZATION"}
STRIDE = 32  # tokens that windows of long texts share


async def model_findings(
    runner: ModelRunner,
    model: str | None,
    texts: Sequence[str],
    call: CallContext,
    entities: Collection[str] | None,
    threshold: float,
) -> list[list[RecognizerResult]]:
    """Of each text what `model` finds of `entities` (None: all of MODEL_LABELS, or all labels of a model that
    has its own). Long texts are read in windows. Errors as `extract_entities`."""
    async with runner.lease(model, call, "entities", "token_classify") as leased:
        name, has_labels = leased.name, "token_classify" in leased.tasks
    asked = {word: label for label, word in MODEL_LABELS.items() if entities is None or label in entities}
    if not asked:
        return [[] for _ in texts]
    least = threshold if 0 < threshold < 1 else None
    labels = None if has_labels else list(asked)
    found = await extract_entities(runner, name, texts, labels, call, threshold=least, stride=STRIDE)
    findings: list[list[RecognizerResult]] = []
    for one in found:
        named = [(asked.get(entity.label) or _label(entity.label), entity) for entity in one]
        findings.append(
            [
                RecognizerResult(entity.start, entity.end, label, entity.score, name, "", entity.score, None)
                for label, entity in named
                if (entities is None or label in entities) and entity.score >= threshold
            ]
        )
    return findings


def _label(label: str) -> str:
    upper = "".join(one if one.isalnum() else "_" for one in label.upper())
    return _SHORT.get(upper, upper)


async def redact_texts(
    redactor: Redactor,
    texts: Sequence[str],
    runner: ModelRunner,
    model: str | None,
    call: CallContext,
    entities: Collection[str] | None,
) -> list[Redacted]:
    """As `redact`, with what `model` finds, too. Raises InvalidRequest for no texts."""
    if not texts:
        raise InvalidRequest("there are no texts: send at least one", param="input")
    found = await model_findings(runner, model, texts, call, entities, redactor.analyzer.threshold)
    return [redactor.redact(text, more) for text, more in zip(texts, found, strict=True)]
