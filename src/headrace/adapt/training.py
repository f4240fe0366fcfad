"""A student of a task: the rung of the ladder that may answer most, with its card."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.adapt.checkpoints import Checkpoints, StaleTraining, drop_training, kept_training
from headrace.adapt.examples import ExampleStore
from headrace.adapt.exposure import exposure_of, planted
from headrace.adapt.ladder import (
    LAST_ID,
    Progress,
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


Opened = Callable[[list[TaskExample], Split], Progress]


def risk_of(settings: AdaptSettings) -> float:
    """The part of a student's answers that may be wrong by its certificate. All of the task together must
    be within the margin, which is tested beside the incumbent."""
    return min(0.5, 2 * settings.margin)


def tried_ladder(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    embed: Embed | None,
    student: str,
    opened: Opened | None = None,
    until: int = LAST_ID,
) -> tuple[list[TaskExample], Split, list[RungResult]]:
    """The examples of a task up to the id `until`, how they are divided, and how each rung did.

    `embed` None: what has no vector yet is left out. `opened` gives the progress to go on from.
    InvalidRequest where examples are too few, or have no answers that come again."""
    if embed is not None:
        embed_examples(store.database, settings.encoder, embed, task=task)
    if tools := store.task(task).tools:
        raise InvalidRequest(
            f"requests of task {task} offer tools ({tools:.100}), whose calls are no text: students answer "
            "with text alone",
            param="task",
        )
    examples = task_examples(store.database, task, settings.encoder, until=until)
    parts = split(planted(examples, student))
    risk = risk_of(settings)
    check_enough(task, examples, parts, risk)
    progress = None if opened is None else opened(examples, parts)
    return examples, parts, climb(task, student, parts, risk, progress)


def train(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    embed: Embed | None,
    shown: Callable[[str], None] = lambda text: None,
    wait: Callable[[], None] = lambda: None,
) -> tuple[str, Card]:
    """Make the best student of a task, and keep it. InvalidRequest where none can be certified.

    A training that was interrupted goes on from its last checkpoint, on the examples that it began with; the
    student is the same to the bit. `wait` is called in every step, and may take its time."""
    shown("trying the ladder")
    kept = kept_training(store.database, task)
    name, until = (new_student(), LAST_ID) if kept is None else (kept.student, kept.last_example)

    def opened(examples: list[TaskExample], parts: Split) -> Progress:
        return Checkpoints(store.database, task, name, examples, parts, settings, kept, wait)

    try:
        examples, parts, results = tried_ladder(store, task, settings, embed, name, opened, until)
    except StaleTraining:  # examples were deleted or corrected, or settings changed: begin anew
        drop_training(store.database, task)
        return train(store, task, settings, embed, shown, wait)
    except InvalidRequest:
        drop_training(store.database, task)
        raise
    chosen: RungResult | None = None
    for one in results:  # the simplest first
        least = 0.0 if chosen is None else chosen.share + AS_MUCH
        if one.calibration is not None and one.share > least:
            chosen = one
    if chosen is None:
        drop_training(store.database, task)
        said = "; ".join(f"{one.rung}: {one.problem}" for one in results)
        raise InvalidRequest(f"no student of task {task} can be certified: {said}", param="task")
    bounds = settings.margin, settings.alpha, risk_of(settings)
    card = card_of(chosen, results, parts, examples, bounds, settings.encoder)
    card = replace(card, exposed=exposure_of(chosen.model, name, settings.canaries).problems)
    tried = parts.held_out if chosen.rung == "exact" else without_duplicates(parts)
    pairs = _pairs(chosen, tried)
    with store.database.transaction():
        begun = kept_training(store.database, task)
        if begun is None or begun.student != name:  # whatever was deleted has no part in what is kept
            raise InvalidRequest(
                f"examples of task {task} were deleted while a student learned from them: train it again",
                param="task",
            )
        Registry(store.database).add(task, name, chosen, card, pairs, settings.encoder)
        drop_training(store.database, task)
    return name, card


def _pairs(chosen: RungResult, tried: list[TaskExample]) -> list[Pair]:
    """In the order in which the certificate was made of them."""
    student = Student(chosen.model)
    found: list[Pair] = []
    for one in tried:
        [said] = student.answer([one.question], one.vector[None])
        found.append(Pair(score=said.score, is_wrong=said.text != one.answer))
    return found
