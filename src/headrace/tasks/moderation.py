"""Moderation: OpenAI's categories, by any classifier and a map from its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, ValidationError, convert

from headrace.errors import InvalidRequest, UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.classify import classify

CATEGORIES: Final[tuple[str, ...]] = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


class ModerationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[moderation]`: a classifier, and for its labels a category each; labels without one count
    for none. A category is flagged from `threshold`."""

    model: str
    map: dict[str, str]
    threshold: float = 0.5


class Moderation(Struct, frozen=True):
    """The score of each category, that of its likeliest label; without a label 0."""

    scores: dict[str, float]
    flagged: dict[str, bool]


def read_moderation(table: Mapping[str, object] | None) -> ModerationSettings | None:
    """The table `[moderation]`; UsageError for what means nothing."""
    if table is None:
        return None
    try:
        found = convert(table, ModerationSettings)
    except ValidationError as error:
        raise UsageError(f"moderation cannot be read: {error}") from None
    for label, category in found.map.items():
        if category not in CATEGORIES:
            raise UsageError(
                f"moderation.map: {label!r} stands for {category!r}, which is none of {', '.join(CATEGORIES)}"
            )
    if not 0 <= found.threshold <= 1:
        raise UsageError(f"moderation.threshold is {found.threshold}, it must be between 0 and 1")
    return found


async def moderate(
    runner: ModelRunner,
    settings: ModerationSettings,
    model: str | None,
    texts: Sequence[str],
    call: CallContext,
) -> list[Moderation]:
    """What the classifier says of each text. Errors as `classify`, and InvalidRequest where the map names a
    label that the model does not have."""
    found = await classify(runner, model or settings.model, texts, call)
    missing = sorted(set(settings.map) - set(found[0].labels)) if found else []
    if missing:
        raise InvalidRequest(
            f"moderation.map names {', '.join(missing)}, the model has the labels"
            f" {', '.join(found[0].labels)}",
            param="model",
        )
    results: list[Moderation] = []
    for one in found:
        scores: dict[str, float] = {name: 0.0 for name in CATEGORIES}  # noqa: C420 - its keys are any text
        for label, score in zip(one.labels, one.scores, strict=True):
            category = settings.map.get(label)
            if category is not None:
                scores[category] = max(scores[category], score)
        flagged = {name: score >= settings.threshold and score > 0 for name, score in scores.items()}
        results.append(Moderation(scores, flagged))
    return results
