"""A student of a task: the rung of the ladder that may answer most, with its card."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.checkpoints import (
    Checkpoints,
    StaleTraining,
    drop_training,
    goes_on,
    has_traffic,
    kept_training,
    note_stage,
)
from headrace.adapt.examples import ExampleStore
from headrace.adapt.exposure import digests, exposure_of, planted
from headrace.adapt.fine_tuning.order import AdapterNote
from headrace.adapt.ladder import (
    LAST_ID,
    OpenAnswers,
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
from headrace.adapt.rungs.lora import GOOD_ENOUGH, LoraTried, lessons_of, tried_lora, why_not
from headrace.adapt.rungs.served import remove_adapters
from headrace.adapt.rungs.teaching import AdapterPlace, students_folder
from headrace.adapt.students import Student
from headrace.adapt.tasks import Embed, embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest
from headrace.gateway.gate import Pair

AS_MUCH = 0.02
"""Of the traffic: so much more a dearer rung must answer to be chosen."""
LOOK_S = 2.0
"""Between two looks whether a training was deleted meanwhile."""


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
    *,
    writes: bool = False,
) -> tuple[list[TaskExample], Split, list[RungResult]]:
    """The examples of a task up to the id `until`, how they are divided, and how each rung did that chooses
    among known answers.

    `embed` None: what has no vector yet is left out. `opened` gives the progress to go on from.
    InvalidRequest where examples are too few, or have no answers that come again; with `writes` there are no
    results then."""
    if embed is not None:
        embed_examples(store.database, settings.encoder, embed, task=task)
    if tools := store.task(task).tools:
        raise InvalidRequest(
            f"requests of task {task} offer tools ({tools:.100}), whose calls are no text: students answer "
            "with text alone",
            param="task",
        )
    examples = task_examples(store.database, task, settings.encoder, until=until)
    all_planted = planted(examples, student)
    parts = split(all_planted)
    risk = risk_of(settings)
    try:
        check_enough(task, examples, parts, risk)
    except OpenAnswers:
        if not writes:
            raise
        parts = lessons_of(all_planted)
        if opened is not None:
            opened(examples, parts)
        return examples, parts, []
    progress = None if opened is None else opened(examples, parts)
    return examples, parts, climb(task, student, parts, risk, progress)


class _Made(Struct, frozen=True, kw_only=True):
    """A student that can be certified, with what its certificate was made of."""

    result: RungResult
    parts: Split
    pairs: list[Pair]
    exposed: list[str]


def train(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    embed: Embed | None,
    shown: Callable[[str], None] = lambda text: None,
    wait: Callable[[], None] = lambda: None,
    weights: Path | None = None,
    unfit: str = "",
) -> tuple[str, Card]:
    """Make the best student of a task, and keep it. InvalidRequest where none can be certified.

    A training that was interrupted goes on from its last checkpoint, on the examples that it began with; the
    student is the same to the bit. `wait` is called in every step, and may take its time. `weights` is the
    folder of `settings.base`; `unfit` says why there is none."""
    shown("trying the ladder")
    kept = kept_training(store.database, task)
    name, until = (new_student(), LAST_ID) if kept is None else (kept.student, kept.last_example)
    skipped = why_not(settings.base) or unfit
    if not skipped and (weights is None or store.database.path is None):
        skipped = "its adapter needs a store in a file, and a base of this machine"

    def opened(examples: list[TaskExample], parts: Split) -> Progress:
        return Checkpoints(store.database, task, name, examples, parts, settings, kept, wait)

    try:
        examples, parts, results = tried_ladder(
            *(store, task, settings, embed, name, opened, until), writes=not skipped
        )
        chosen = _simplest(name, settings, parts, results)
        lora: LoraTried | InvalidRequest | None = None
        if not skipped and (chosen is None or chosen.result.share < GOOD_ENOUGH):
            lora = _lora(store, task, settings, name, examples, weights, wait)
    except StaleTraining:  # examples were deleted or corrected, or settings changed: begin anew
        _drop(store, task)
        return train(store, task, settings, embed, shown, wait, weights, unfit)
    except OpenAnswers as error:
        _drop(store, task)
        raise InvalidRequest(
            f"{error.message}; one that writes (lora) is not tried: {skipped}", param="task"
        ) from None
    except InvalidRequest:
        _drop(store, task)
        raise
    if isinstance(lora, LoraTried):
        results = [*results, lora.result]
        least = 0.0 if chosen is None else chosen.result.share + AS_MUCH
        if lora.result.calibration is not None and lora.result.share > least:
            chosen = _Made(result=lora.result, parts=lora.parts, pairs=lora.pairs, exposed=lora.exposed)
    elif lora is not None:
        skipped = lora.message
    elif not skipped:
        skipped = f"simpler students may answer {GOOD_ENOUGH:.0%} of the requests"
    if chosen is None:
        _drop(store, task)
        said = "; ".join(f"{one.rung}: {one.problem}" for one in results)
        said += f"; lora: {skipped}" if skipped else ""
        raise InvalidRequest(f"no student of task {task} can be certified: {said}", param="task")
    bounds = settings.margin, settings.alpha, risk_of(settings)
    card = card_of(chosen.result, results, chosen.parts, examples, bounds, settings.encoder)
    card = replace(
        card,
        exposed=chosen.exposed,
        canaries=digests(settings.canaries),
        skipped={"lora": skipped} if skipped else {},
    )
    try:
        with store.database.transaction():
            begun = kept_training(store.database, task)
            if begun is None or begun.student != name:  # whatever was deleted has no part in what is kept
                raise _deleted(task)
            Registry(store.database).add(task, name, chosen.result, card, chosen.pairs, settings.encoder)
            drop_training(store.database, task)
    finally:
        remove_adapters(store.database)
    return name, card


def _deleted(task: str) -> InvalidRequest:
    return InvalidRequest(
        f"examples of task {task} were deleted while a student learned from them: train it again",
        param="task",
    )


def _simplest(name: str, settings: AdaptSettings, parts: Split, results: list[RungResult]) -> _Made | None:
    """Of students that choose the one that may answer most, of those that may as much the simplest."""
    chosen: RungResult | None = None
    for one in results:  # the simplest first
        least = 0.0 if chosen is None else chosen.share + AS_MUCH
        if one.calibration is not None and one.share > least:
            chosen = one
    if chosen is None:
        return None
    tried = parts.held_out if chosen.rung == "exact" else without_duplicates(parts)
    exposed = exposure_of(chosen.model, name, settings.canaries).problems
    return _Made(result=chosen, parts=parts, pairs=_pairs(chosen, tried), exposed=exposed)


def _lora(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    name: str,
    examples: list[TaskExample],
    weights: Path | None,
    wait: Callable[[], None],
) -> LoraTried | InvalidRequest:
    """How a student that writes did, or why there is none."""
    database = store.database
    assert weights is not None and settings.base is not None and database.path is not None
    place = AdapterPlace(
        base=settings.base,
        weights=weights,
        folder=students_folder(database.path) / name,
        cores=settings.train_cores,
        hours=settings.train_hours,
    )

    looked_s = -math.inf

    def noted(note: AdapterNote) -> None:
        if note.kind == "step":
            note_stage(database, task, f"lora step {note.step} of {note.steps}")

    def is_busy() -> bool:
        nonlocal looked_s
        if time.monotonic() - looked_s >= LOOK_S:
            looked_s = time.monotonic()
            if not goes_on(database, task, name):
                raise _deleted(task)
        return has_traffic(database)

    def waited() -> None:
        is_busy()
        wait()

    waited()
    try:
        return tried_lora(
            *(task, name, lessons_of(planted(examples, name)), risk_of(settings), place, settings.canaries),
            has_traffic=is_busy,
            wait=waited,
            noted=noted,
        )
    except InvalidRequest as error:
        return error


def _drop(store: ExampleStore, task: str) -> None:
    drop_training(store.database, task)
    remove_adapters(store.database)


def _pairs(chosen: RungResult, tried: list[TaskExample]) -> list[Pair]:
    """In the order in which the certificate was made of them."""
    student = Student(chosen.model)
    found: list[Pair] = []
    for one in tried:
        [said] = student.answer([one.question], one.vector[None])
        found.append(Pair(score=said.score, is_wrong=said.text != one.answer))
    return found
