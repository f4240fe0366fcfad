"""A student of a task: the rung of the ladder that may answer most, with its card."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from headrace.adapt.fine_tuning.order import AdapterNote
from headrace.adapt.students.checkpoints import (
    Checkpoints,
    StaleTraining,
    drop_training,
    goes_on,
    has_traffic,
    kept_training,
    note_stage,
)
from headrace.adapt.students.exposure import digests, exposure_of, planted, with_canaries
from headrace.adapt.students.ladder import (
    AS_MUCH,
    LAST_ID,
    OpenAnswers,
    Progress,
    RungResult,
    Split,
    TaskExample,
    check_enough,
    climb,
    is_enough,
    split,
    task_examples,
    without_duplicates,
)
from headrace.adapt.students.registry import Card, Registry, card_of, new_student, report_of
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.rungs.lora import lessons_of, tried_writer, why_not
from headrace.adapt.students.rungs.outcome import RungTried, are_texts
from headrace.adapt.students.rungs.served import remove_adapters
from headrace.adapt.students.rungs.tagger import tried_tagger
from headrace.adapt.students.rungs.teaching import ADAPTER, WHOLE, AdapterPlace, keep_only, students_folder
from headrace.adapt.students.student import LADDER, LEAST_SCORE, RUNGS, Rung, Student
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import Embed, embed_examples
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest
from headrace.gateway.gate import Pair

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
    rungs: Sequence[Rung] = RUNGS,
    makes: bool = False,
    stops: bool = False,
) -> tuple[list[TaskExample], Split, list[RungResult], str]:
    """The examples of a task up to the id `until`, how they are divided, how each of `rungs` did that chooses
    among known answers, and why there are none.

    `embed` None: what has no vector yet is left out. `opened` gives the progress to go on from; `stops`: a
    rung is tried only where simpler ones do not answer enough. InvalidRequest where examples are too few, or
    have no answers that come again; where others can be made (`makes`) that is no error."""
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
    except OpenAnswers as error:
        if not makes:
            raise
        if opened is not None:
            opened(examples, parts)
        return examples, parts, [], error.message
    progress = None if opened is None else opened(examples, parts)
    return examples, parts, climb(task, student, parts, risk, progress, rungs, stops=stops), ""


def all_answered(found: RungTried) -> RungTried:
    """A student whose answers no certificate chooses from: it gives all that it has."""
    share = sum(one.score > LEAST_SCORE for one in found.pairs) / max(len(found.pairs), 1)
    return replace(found, result=replace(found.result, share=share))


class Ladder:
    """One climb: the rungs that were tried, the best so far, and why others were not."""

    def __init__(
        self,
        store: ExampleStore,
        task: str,
        settings: AdaptSettings,
        name: str,
        folders: ModelFolders,
        wait: Callable[[], None],
        only: Rung | None,
    ) -> None:
        self._store, self._task, self._settings, self._name = store, task, settings, name
        self._folders, self._wait, self._only = folders, wait, only
        self._row = store.task(task)
        self.skipped: dict[Rung, str] = {rung: why for rung in LADDER if (why := self._why_not(rung))}
        self.results: list[RungResult] = []
        self.best: RungTried | None = None
        self._looked_s = -math.inf
        self.has_texts = True
        """Whether answers are free text, which a judge may compare."""

    @property
    def makes(self) -> bool:
        """Whether students can be tried that make their answers."""
        return any(rung not in self.skipped for rung in LADDER if rung not in RUNGS)

    def chose(self, results: Sequence[RungResult], parts: Split, problem: str) -> None:
        """Take over those that choose an answer."""
        self.results = list(results)
        for rung in RUNGS:
            if rung not in self.skipped and rung not in [one.rung for one in results]:
                self.skipped[rung] = problem or self._enough()
        chosen: RungResult | None = None
        for one in results:  # the simplest first
            least = 0.0 if chosen is None else chosen.share + AS_MUCH
            if one.calibration is not None and one.share > least:
                chosen = one
        if chosen is not None:
            tried = parts.held_out if chosen.rung == "exact" else without_duplicates(parts)
            exposed = exposure_of(chosen.model, self._name, self._settings.canaries).problems
            pairs = _pairs(chosen, tried)
            self.best = RungTried(result=chosen, parts=parts, pairs=pairs, exposed=exposed)

    def make(self, rung: Rung, examples: list[TaskExample]) -> None:
        """Try a rung whose students make their answers, where that is worth its time."""
        if rung in self.skipped:
            return
        if self._only is None and is_enough(rung, self.results):
            self.skipped[rung] = self._enough()
            return
        try:
            found = self._tried(rung, examples)
        except InvalidRequest as error:
            self.skipped[rung] = error.message
            return
        if (
            found.result.model.is_loaded
            and found.result.calibration is None
            and self.is_judged(is_certified=False)
        ):
            found = all_answered(found)
        self.results.append(found.result)
        least = 0.0 if self.best is None else self.best.result.share + AS_MUCH
        if found.result.share > least:
            self.best = found

    def is_judged(self, *, is_certified: bool) -> bool:
        """Whether a judge compares the student with the incumbent: where a person has said so, or where
        answers are free text and equality certifies nothing. InvalidRequest where there is none."""
        row, judge = self._row, self._settings.judge
        if row.evaluator == "judge" and judge is None:
            raise InvalidRequest(
                f"task {row.id} is evaluated by a judge, and adapt.judge names no model: name one, or set "
                f"`headrace adapt tasks --evaluator {row.id} auto`",
                param="task",
            )
        if row.evaluator:
            return row.evaluator == "judge"
        return judge is not None and self.has_texts and not row.form and not is_certified

    def told(self) -> str:
        """Why nothing of it can be certified."""
        said = [f"{one.rung}: {one.problem}" for one in self.results]
        others: list[Rung] = [one for one in LADDER if one in self.skipped]
        return "; ".join([*said, *(f"{one} is not tried: {self.skipped[one]}" for one in others)])

    def _enough(self) -> str:
        share = max((one.share for one in self.results), default=0.0)
        return f"simpler students may answer {share:.0%} of the requests"

    def _why_not(self, rung: Rung) -> str:
        if self._only is not None and rung != self._only:
            return f"{self._only} alone was asked for"
        if rung in RUNGS:
            return ""
        if rung == "tagger":
            missing = f"the model {self._settings.tagger} (adapt.tagger) is not there"
            return "" if self._folders.tagger else self._folders.unfit.get(rung, missing)
        base = self._settings.base if rung == "lora" else self._settings.student or self._settings.base
        if why := why_not(base, rung) or self._folders.unfit.get(rung, ""):
            return why
        weights = self._folders.base if rung == "lora" else self._folders.student
        is_there = weights is not None and self._store.database.path is not None
        return "" if is_there else "its weights need a store in a file, and a model of this machine"

    def _tried(self, rung: Rung, examples: list[TaskExample]) -> RungTried:
        settings, risk = self._settings, risk_of(self._settings)
        self._waited()
        if rung == "tagger":
            note_stage(self._store.database, self._task, "tagger")
            assert self._folders.tagger is not None
            model = settings.tagger, Path(self._folders.tagger)
            return tried_tagger(
                *(self._task, self._name, examples, risk, model, settings.train_cores, settings.canaries),
                wait=self._waited,
            )
        return tried_writer(
            *(self._task, self._name, with_canaries(lessons_of(examples), self._name), risk),
            *(self._place(rung), settings.canaries),
            has_traffic=self._is_busy,
            wait=self._waited,
            noted=lambda note: self._noted(rung, note),
        )

    def _place(self, rung: Rung) -> AdapterPlace:
        settings, folders, path = self._settings, self._folders, self._store.database.path
        is_whole = rung == "distilled"
        base = (settings.student or settings.base) if is_whole else settings.base
        weights = folders.student if is_whole else folders.base
        assert path is not None and base is not None and weights is not None
        has_teacher = is_whole and folders.teacher_weights is not None
        return AdapterPlace(
            base=base,
            weights=Path(weights),
            folder=students_folder(path) / self._name,
            cores=settings.train_cores,
            hours=settings.train_hours,
            kind=WHOLE if is_whole else ADAPTER,
            teacher=folders.teacher if has_teacher else None,
            teacher_weights=Path(folders.teacher_weights)
            if has_teacher and folders.teacher_weights
            else None,
        )

    def _noted(self, rung: Rung, note: AdapterNote) -> None:
        if note.kind == "step":
            note_stage(self._store.database, self._task, f"{rung} step {note.step} of {note.steps}")
        elif note.kind == "made":
            note_stage(self._store.database, self._task, f"{rung} answers later examples")

    def _is_busy(self) -> bool:
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            if not goes_on(self._store.database, self._task, self._name):
                raise Deleted
        return has_traffic(self._store.database)

    def _waited(self) -> None:
        self._is_busy()
        self._wait()


class Deleted(Exception):
    """Examples were deleted while a student learned from them."""


def train(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    embed: Embed | None,
    shown: Callable[[str], None] = lambda text: None,
    wait: Callable[[], None] = lambda: None,
    folders: ModelFolders | None = None,
    rung: Rung | None = None,
) -> tuple[str, Card]:
    """Make the best student of a task, or that of one rung, and keep it. InvalidRequest where none can be
    certified.

    A training that was interrupted goes on from its last checkpoint, on the examples that it began with; the
    student is the same to the bit. `wait` is called in every step, and may take its time."""
    shown("trying the ladder")
    kept = kept_training(store.database, task)
    name, until = (new_student(), LAST_ID) if kept is None else (kept.student, kept.last_example)
    ladder = Ladder(store, task, settings, name, folders or ModelFolders(), wait, rung)

    def opened(examples: list[TaskExample], parts: Split) -> Progress:
        return Checkpoints(store.database, task, name, examples, parts, settings, kept, wait, rung)

    try:
        examples, parts, results, problem = tried_ladder(
            *(store, task, settings, embed, name, opened, until),
            rungs=[one for one in RUNGS if rung in (None, one)],
            makes=ladder.makes,
            stops=rung is None,
        )
        ladder.has_texts = are_texts(examples)
        ladder.is_judged(is_certified=True)  # raises where there should be a judge, and is none
        ladder.chose(results, parts, problem)
        for one in LADDER[len(RUNGS) :]:
            ladder.make(one, examples)
        return name, _kept(store, task, settings, name, ladder, examples)
    except StaleTraining:  # examples were deleted or corrected, or settings changed: begin anew
        _drop(store, task)
        return train(store, task, settings, embed, shown, wait, folders, rung)
    except OpenAnswers as error:
        _drop(store, task)
        raise InvalidRequest(f"{error.message}; {ladder.told()}", param="task") from None
    except Deleted:  # with what was kept of it
        remove_adapters(store.database)
        raise InvalidRequest(
            f"examples of task {task} were deleted while a student learned from them: train it again",
            param="task",
        ) from None
    except InvalidRequest:
        _drop(store, task)
        raise


def _kept(
    store: ExampleStore,
    task: str,
    settings: AdaptSettings,
    name: str,
    ladder: Ladder,
    examples: list[TaskExample],
) -> Card:
    """The best student is kept, with its card. InvalidRequest where there is none, Deleted where its examples
    are gone."""
    best = ladder.best
    if best is None:
        raise InvalidRequest(f"no student of task {task} can be certified: {ladder.told()}", param="task")
    is_judged = ladder.is_judged(is_certified=best.result.calibration is not None)
    bounds = settings.judge_margin if is_judged else settings.margin, settings.alpha, risk_of(settings)
    card = replace(
        card_of(best.result, ladder.results, best.parts, examples, bounds, settings.encoder),
        exposed=best.exposed,
        canaries=digests(settings.canaries),
        skipped={str(one): why for one, why in ladder.skipped.items()},
        lineage=best.lineage,
        report=report_of(ladder.results, ladder.skipped),
        evaluator="judge" if is_judged else "equal",
    )
    try:
        with store.database.transaction():
            begun = kept_training(store.database, task)
            if begun is None or begun.student != name:  # whatever was deleted has no part in what is kept
                raise Deleted
            Registry(store.database).add(task, name, best.result, card, best.pairs, settings.encoder)
            drop_training(store.database, task)
        if best.result.model.is_loaded and store.database.path is not None:
            chosen = WHOLE if card.rung == "distilled" else ADAPTER
            keep_only(students_folder(store.database.path) / name, chosen)
    finally:
        remove_adapters(store.database)
    return card


def _drop(store: ExampleStore, task: str) -> None:
    drop_training(store.database, task)
    remove_adapters(store.database)


def _pairs(chosen: RungResult, tried: Sequence[TaskExample]) -> list[Pair]:
    """In the order in which the certificate was made of them."""
    student = Student(chosen.model)
    found: list[Pair] = []
    for one in tried:
        [said] = student.answer([one.question], one.vector[None])
        found.append(Pair(score=said.score, is_wrong=said.text != one.answer))
    return found
