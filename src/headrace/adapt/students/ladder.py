"""The ladder of a task: which students its examples can make, and how far they reach on later examples."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.students.student import (
    LADDER,
    RUNGS,
    Lesson,
    Rung,
    Student,
    StudentModel,
    same_question,
    taught,
)
from headrace.adapt.traffic.kmeans import Floats
from headrace.adapt.traffic.tasks import vectors_of
from headrace.config.providers import RemoteModelSettings
from headrace.errors import InvalidRequest
from headrace.gateway.certificate import least_examples
from headrace.gateway.gate import Calibration, Pair, calibrate
from headrace.gateway.near_answers import is_closed_answer
from headrace.storage.database import Database
from headrace.tasks.few_shot import FitState
from headrace.tasks.pii.operators import PLACEHOLDER

MAX_LESSONS = 5000
"""The newest; a head of more takes minutes."""
HELD_OUT = 0.4
"""Part of the examples, the newest, that students are tried on."""
NEAR_DUPLICATE = 0.98
"""Cosine from which on a later question says nothing about unseen ones."""
LEAST_OF_ANSWER = 2
LAST_ID = 2**63 - 1
CONFIDENCE = 1 - 0.05 / len(LADDER)
"""Of each rung's certificate: that all hold has 95 %."""
AS_MUCH = 0.02
"""Of the requests: so much more a dearer rung must answer to be chosen."""
WORTH: Mapping[Rung, float] = {
    "exact": 0.0,
    "nearest": AS_MUCH,
    "head": AS_MUCH,
    "tagger": 0.1,
    "lora": 0.2,
    "distilled": 0.2,
}
"""Part of the requests that simpler students must leave, so that a rung is tried: its training takes seconds,
a minute, or minutes to hours."""
STUDENT = "adapt/"
"""Before the name of a student, where targets have names."""
CASCADE = RemoteModelSettings(targets=("student", "large"), route="cascade", score="logprob", compare="equal")


class TaskExample(Struct, frozen=True, kw_only=True):
    """An example as students see it. `answer` is the right one, as far as is known: a correction, or what the
    incumbent said; `said` is what that was, and `target` what had answered."""

    id: int
    at_s: float
    key_name: str
    question: str
    said: str
    answer: str
    group: int | None
    messages: bytes
    target: str
    vector: Floats


class RungResult(Struct, frozen=True, kw_only=True):
    """How a kind of student did on the examples that were held out. `calibration` None: nothing of what it
    says can be certified, and `problem` says why. It took `seconds` of processor time, and has `bytes`."""

    rung: Rung
    model: StudentModel
    tried: int
    right: int
    share: float
    calibration: Calibration | None
    problem: str = ""
    seconds: float = 0.0
    bytes: int = 0


class OpenAnswers(InvalidRequest):
    """The answers of a task do not come again: none of them can be chosen, only written."""


class Split(Struct, frozen=True):
    """Examples by time: to learn from, and to try students on."""

    lessons: list[TaskExample]
    held_out: list[TaskExample]


def task_examples(
    database: Database, task: str, encoder: str, *, after: int = 0, until: int = LAST_ID
) -> list[TaskExample]:
    """The examples of a task that have a right answer and a vector, in their order, with ids from after
    `after` up to `until`.

    What a student has answered is none, nor what was judged bad and not corrected."""
    rows = database.query(
        """SELECT one.id, one.at_s, one.key_name, one.question, one.answer,
        coalesce(said.correction, one.answer), one.task_group, one.messages,
        one.target, one.vector FROM examples one LEFT JOIN feedback said ON said.example = one.id
        WHERE one.task = ? AND one.id > ? AND one.id <= ? AND one.encoder = ?
        AND one.target NOT LIKE 'adapt/%'
        AND (said.correction IS NOT NULL OR (one.outcome = 'ok' AND coalesce(said.score, 1) >= 0.5))
        ORDER BY one.id DESC LIMIT ?""",
        (task, after, until, encoder, MAX_LESSONS),
    )
    if not rows:
        return []
    vectors = vectors_of([row[-1] for row in rows])
    names = TaskExample.__struct_fields__
    return [
        TaskExample(**dict(zip(names, (*row[:-1], vector), strict=True)))  # type: ignore[arg-type]
        for row, vector in zip(rows, vectors, strict=True)
    ][::-1]


def closed(examples: Sequence[TaskExample]) -> list[TaskExample]:
    """Those whose answer may be one of few: short, and without what stands for personal data."""
    return [one for one in examples if is_closed_answer(one.answer) and not PLACEHOLDER.search(one.answer)]


def capped(examples: Sequence[TaskExample]) -> list[TaskExample]:
    """With at most half of one key, the newest, where several keys share a task."""
    counts = Counter(one.key_name for one in examples)
    key, most = counts.most_common(1)[0] if counts else ("", 0)
    surplus = most - (len(examples) - most)
    if len(counts) < 2 or surplus <= 0:
        return list(examples)
    own = [place for place, one in enumerate(examples) if one.key_name == key]
    dropped = set(own[:surplus])
    return [one for place, one in enumerate(examples) if place not in dropped]


def split(examples: Sequence[TaskExample]) -> Split:
    """By time; of answers that came once alone nothing can be learned."""
    known = capped(closed(examples))
    cut = len(known) - int(len(known) * HELD_OUT)
    counts = Counter(one.answer for one in known[:cut])
    lessons = [one for one in known[:cut] if counts[one.answer] >= LEAST_OF_ANSWER]
    return Split(lessons, known[cut:])


def needed(risk: float) -> int:
    """Examples that it takes at least to certify a student that makes no mistake."""
    return int((least_examples(risk, CONFIDENCE) / 0.8 + 2) / HELD_OUT) + 1


def check_enough(task: str, examples: Sequence[TaskExample], parts: Split, risk: float) -> None:
    """InvalidRequest says how much is missing, or why nothing can be learned."""
    least, known = needed(risk), len(parts.lessons) + len(parts.held_out)
    if len(examples) < least:
        raise InvalidRequest(
            f"task {task} has {len(examples):,} examples with an answer, {least:,} are needed at least: "
            f"{least - len(examples):,} more",
            param="task",
        )
    if len(parts.lessons) < 2 or len({one.answer for one in parts.lessons}) < 2 or known < least:
        raise OpenAnswers(
            f"task {task} has no answers that come again: of {len(examples):,} examples {known:,} have a "
            "short answer that others have, too; students are for closed answers such as labels",
            param="task",
        )


class Progress:
    """How far a training has come. This one keeps nothing."""

    rungs: Sequence[RungResult] = ()
    """Those that are done."""
    state: FitState | None = None
    """Where the next one's fit stands."""

    def done(self, rung: RungResult) -> None:
        """A rung is done."""

    def step(self, state: FitState) -> None:
        """A step of a fit is done; it may wait here."""


def is_enough(rung: Rung, results: Sequence[RungResult]) -> bool:
    """Whether students that were tried leave too little for this rung to be tried."""
    return any(1 - one.share < WORTH[rung] for one in results)


def climb(
    task: str,
    student: str,
    parts: Split,
    risk: float,
    progress: Progress | None = None,
    rungs: Sequence[Rung] = RUNGS,
    *,
    stops: bool = False,
) -> list[RungResult]:
    """Of `rungs` each kind of student that chooses, taught on the earlier examples and tried on the later
    ones; with `stops` only while simpler ones do not answer enough."""
    progress = progress or Progress()
    lessons = [Lesson(one.question, one.answer, one.vector, one.at_s) for one in parts.lessons]
    fresh = without_duplicates(parts)
    found = list(progress.rungs)
    wanted: list[Rung] = [one for one in RUNGS if one in rungs]
    for rung in wanted[len(found) :]:
        if stops and is_enough(rung, found):
            break
        start_s = time.process_time()
        model = taught(rung, lessons, progress.step, progress.state)
        tried = parts.held_out if rung == "exact" else fresh
        result = _tried(task, f"{STUDENT}{student}", model, tried, len(parts.held_out), risk)
        found.append(replace(result, seconds=time.process_time() - start_s))
        progress.done(found[-1])
    return found


def without_duplicates(parts: Split) -> list[TaskExample]:
    """What was held out and is not almost what was learned: for those who must answer what is new."""
    if not parts.held_out:
        return []
    known = {same_question(one.question) for one in parts.lessons}
    vectors = np.stack([one.vector for one in parts.lessons])
    near = (np.stack([one.vector for one in parts.held_out]) @ vectors.T).max(1)
    return [
        one
        for one, most in zip(parts.held_out, cast("list[float]", near.tolist()), strict=True)
        if most < NEAR_DUPLICATE and same_question(one.question) not in known
    ]


def _tried(
    task: str, name: str, model: StudentModel, tried: Sequence[TaskExample], held_out: int, risk: float
) -> RungResult:
    size = model.size
    vectors = np.stack([one.vector for one in tried]) if tried else np.empty((0, size), np.float32)
    said = Student(model).answer([one.question for one in tried], vectors)
    right = sum(one.text == each.answer for one, each in zip(said, tried, strict=True))
    pairs = [
        Pair(score=one.score, is_wrong=one.text != each.answer) for one, each in zip(said, tried, strict=True)
    ]
    calibration, problem = None, ""
    try:
        calibration = certified(task, name, model.digest, pairs, risk)
    except InvalidRequest as error:
        problem = error.message
    share = 0.0
    if calibration is not None:
        share = sum(one.score >= calibration.certificate.threshold for one in said) / held_out
    return RungResult(
        rung=model.rung,
        model=model,
        tried=len(tried),
        right=right,
        share=share,
        calibration=calibration,
        problem=problem,
        bytes=len(msgspec.msgpack.encode(model)),
    )


def certified(
    task: str, name: str, weights: str, pairs: Sequence[Pair], risk: float, large: str = ""
) -> Calibration:
    """The certificate of a student with these weights for an incumbent. InvalidRequest where there is
    none."""
    try:
        return calibrate(
            pairs,
            route=gate_name(task),
            settings=CASCADE,
            task=task,
            small=f"local {name} {weights}",
            large=large,
            risk=risk,
            confidence=CONFIDENCE,
        )
    except InvalidRequest as error:
        if error.param != "risk":
            raise
        wrong = sum(one.is_wrong for one in pairs)
        raise InvalidRequest(
            f"nothing is certified: {wrong:,} of {len(pairs):,} later questions got a wrong answer or none, "
            f"and of the surest answers more than {risk:.1%} may be wrong, too: collect more examples, or "
            "raise adapt.margin, which is half of that",
            param="task",
        ) from None


def gate_name(task: str) -> str:
    """Under which the gate of a task's student is kept."""
    return f"{STUDENT}{task}"


def data_digest(examples: Sequence[TaskExample]) -> str:
    """By which the data that a student learned from is known."""
    digest = hashlib.sha256()
    for one in examples:
        digest.update(f"{one.id}\0{one.question}\0{one.answer}\0".encode("utf-8", "replace"))
    return digest.hexdigest()
