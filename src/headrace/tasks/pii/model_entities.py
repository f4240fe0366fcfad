"""Entities that a model finds, such as names, beside those of patterns."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.entities import extract_entities
from headrace.tasks.pii.analyzer import MODEL_LABELS
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.redaction import Redacted, Redactor

MAX_WORD = 64
"""Characters around the end of a finding that may be the rest of its word."""
_REST, _BEGUN = re.compile(rf"[A-Za-z0-9]{{0,{MAX_WORD}}}"), re.compile(r"[A-Za-z0-9]*\Z")
_LABEL = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_SHORT = {"PER": "PERSON", "LOC": "LOCATION", "GPE": "LOCATION", "ORG": "ORGANIZATION"}
STRIDE = 32  # tokens that windows of long texts share


def asked_model(runner: ModelRunner, model: str | None, entities: Collection[str] | None) -> str | None:
    """The model that is named; none is, but entities that only models find: the first that finds any."""
    if model is None and not MODEL_LABELS.keys().isdisjoint(entities or ()):
        return runner.able("entities", "token_classify")
    return model


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
    for text, one in zip(texts, found, strict=True):
        named = [(asked.get(entity.label) or _label(entity.label), entity) for entity in one]
        placed = [
            (whole_words(text, entity.start, entity.end), label, entity.score)
            for label, entity in named
            if (entities is None or label in entities) and entity.score >= threshold
        ]
        findings.append(
            [
                RecognizerResult(*place, label, score, name, "", score, None)
                for place, label, score in placed
                if place is not None
            ]
        )
    return findings


def whole_words(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The place of a finding with the rest of its words, of which no half may be left. None where it ends
    within a part of a label of programs, as "drawal_ch" in cash_withdrawal_charge does: this is no name."""
    before, after = text[max(start - MAX_WORD, 0) : start], text[end : end + MAX_WORD]
    first, last = start, end
    if text[start].isalnum() and text[start].isascii():
        begun = _BEGUN.search(before)
        first -= len(begun[0]) if begun else 0
    if text[end - 1].isalnum() and text[end - 1].isascii():
        rest = _REST.match(after)
        last += len(rest[0]) if rest else 0
    if (first, last) == (start, end) or start - first >= MAX_WORD or last - end >= MAX_WORD:
        return start, end
    word = re.search(r"\w*\Z", before[: len(before) - (start - first)], re.ASCII)
    more = re.match(r"\w*", after[last - end :], re.ASCII)
    assert word is not None and more is not None
    return None if _LABEL.fullmatch(word[0] + text[first:last] + more[0]) else (first, last)


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
