"""A student of a task: the rung of the ladder that may answer most, with its card."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.adapt.examples import ExampleStore
from headrace.adapt.exposure import exposure_of, planted
from headrace.adapt.ladder import (
    RungResult,
    Split,
    TaskExample,
    check_enough,
    climb,
    split,
    task_examples,
    without_duplicates,
)
from headrace.adapt.registry import Card, Registry, card_of, new_student
from headrace.adapt.students import Student
from headrace.adapt.tasks import Embed, embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest
from headrace.gateway.gate import Pair

AS_MUCH = 0.02
"""Of the traffic: so much more a dearer rung must answer to be chosen."""


def risk_of(settings: AdaptSettings) -> float:
    """The part of a student's answers that may be wrong by its certificate. All of the task together must
    be within the margin, which is tested beside the incumbent."""
    return min(0.5, 2 * settings.margin)


def tried_ladder(
    store: ExampleStore, task: str, settings: AdaptSettings, embed: Embed, student: str
) -> tuple[list[TaskExample], Split, list[RungResult]]:
    """The examples of a task, how they are divided, and how each rung did. InvalidRequest where they are too
    few, or have no answers that come again."""
    embed_examples(store.database, settings.encoder, embed, task=task)
    examples = task_examples(store.database, task, settings.encoder)
    parts = split(planted(examples, student))
    risk = risk_of(settings)
    check_enough(task, examples, parts, risk)
    return examples, parts, climb(task, student, parts, risk)


def train(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    embed: Embed,
    shown: Callable[[str], None] = lambda text: None,
) -> tuple[str, Card]:
    """Make the best student of a task, and keep it. InvalidRequest where none can be certified."""
    name = new_student()
    shown("trying the ladder")
    examples, parts, results = tried_ladder(store, task, settings, embed, name)
    chosen: RungResult | None = None
    for one in results:  # the simplest first
        least = 0.0 if chosen is None else chosen.share + AS_MUCH
        if one.calibration is not None and one.share > least:
            chosen = one
    if chosen is None:
        said = "; ".join(f"{one.rung}: {one.problem}" for one in results)
        raise InvalidRequest(f"no student of task {task} can be certified: {said}", param="task")
    bounds = settings.margin, settings.alpha, risk_of(settings)
    card = card_of(chosen, results, parts, examples, bounds, settings.encoder)
    card = replace(card, exposed=exposure_of(chosen.model, name, settings.canaries).problems)
    tried = parts.held_out if chosen.rung == "exact" else without_duplicates(parts)
    Registry(store.database).add(task, name, chosen, card, _pairs(chosen, tried), settings.encoder)
    return name, card


def _pairs(chosen: RungResult, tried: list[TaskExample]) -> list[Pair]:
    """In the order in which the certificate was made of them."""
    student = Student(chosen.model)
    found: list[Pair] = []
    for one in tried:
        [said] = student.answer([one.question], one.vector[None])
        found.append(Pair(score=said.score, is_wrong=said.text != one.answer))
    return found
