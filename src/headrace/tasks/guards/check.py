"""What a guard says of a text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.inference.call_context import CallContext
from headrace.inference.events import GuardVerdict
from headrace.tasks.classify import classify
from headrace.tasks.guards.settings import GuardSettings, Stage
from headrace.tasks.pii.analyzer import THRESHOLD, Analyzer
from headrace.tasks.pii.custom import CustomPattern, CustomRecognizer
from headrace.tasks.pii.redaction import Redacted, Redactor

if TYPE_CHECKING:
    from headrace.inference.model_runner import ModelRunner

CLASSIFIED = 0.5
QUICK_CHARACTERS = 4096
"""Longer texts are searched in a thread: that takes a millisecond and more."""


def redactor_of(name: str, guard: GuardSettings) -> Redactor:
    """What finds, and replaces by placeholders, what a guard of patterns is about."""
    threshold = THRESHOLD if guard.threshold is None else guard.threshold
    if guard.kind == "pii":
        return Redactor(Analyzer(guard.entities, threshold=threshold))
    label = "".join(one if one.isascii() and one.isalnum() else "_" for one in name.upper())
    patterns = [CustomPattern(regex=one, score=1.0, ignore_case=False) for one in guard.patterns]
    return Redactor(Analyzer([label], custom=[CustomRecognizer(label, patterns, param="guards")]))


async def check(
    guards: Mapping[str, GuardSettings], text: str, stage: Stage, runner: ModelRunner, call: CallContext
) -> tuple[str, list[GuardVerdict]]:
    """The text, redacted where a guard says so, and the verdicts of those that have found something."""
    verdicts: list[GuardVerdict] = []
    for name, guard in guards.items():
        if stage not in guard.on or not text.strip():
            continue
        if guard.kind == "classifier":
            found = await _classified(guard, text, runner, call)
        else:
            redactor = redactor_of(name, guard)
            done = await _redacted(redactor, text)
            found = max(((one.label, one.score) for one in done.entities), key=lambda it: it[1], default=None)
            text = done.text if guard.action == "redact" else text
        if found is not None:
            verdicts.append(GuardVerdict(name, stage, guard.action, *found))
            if guard.action == "block":
                break
    return text, verdicts


async def _redacted(redactor: Redactor, text: str) -> Redacted:
    """What a guard of patterns makes of a text. Other requests get their turn after each."""
    if len(text) > QUICK_CHARACTERS:
        return await asyncio.to_thread(redactor.redact, text)
    await asyncio.sleep(0)
    return redactor.redact(text)


async def _classified(
    guard: GuardSettings, text: str, runner: ModelRunner, call: CallContext
) -> tuple[str, float] | None:
    """The likeliest of the guard's labels, if it is likely enough. Long texts are cut, with a warning."""
    own = CallContext(request_id=f"{call.request_id}-guard", account=call.account, background=call.background)
    [one] = await classify(runner, guard.model, [text], own, truncate=True)
    call.warnings += own.warnings
    scores = [
        (label, score) for label, score in zip(one.labels, one.scores, strict=True) if label in guard.labels
    ]
    if not scores:
        from_model = ", ".join(one.labels)
        call.warn(
            "guards", f"none of the labels {', '.join(guard.labels)} is one of the model's: {from_model}"
        )
        return None
    label, score = max(scores, key=lambda it: it[1])
    return (label, score) if score >= (CLASSIFIED if guard.threshold is None else guard.threshold) else None
