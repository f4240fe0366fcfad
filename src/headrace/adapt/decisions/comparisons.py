"""Pairs of answers that a judge has compared, a student's and the incumbent's, and what people say of them.

They are kept with the example that they are about, and deleted with it; numbers alone stay as evidence."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from sqlite3 import Connection
from typing import Final, Literal, cast, get_args

import msgspec
from msgspec import Struct

from headrace.adapt.students.ladder import TaskExample
from headrace.adapt.students.registry import Registry, State, StudentRow
from headrace.errors import InvalidRequest
from headrace.evals.calibrated_evidence import SKIPPED, bounds_of, judged_standing, missing_labels
from headrace.storage.database import Database

Verdict = Literal["better", "tie", "worse", "swayed", "refused"]
"""Of the student's answer. "swayed": the judge preferred the same place in both orders."""
VALUES: Final[Mapping[str, int]] = {"better": 1, "worse": -1}
"""As evidence; all others are 0."""
Preferred = Literal["1", "2", "tie", "skip"]
PREFERRED: Final[tuple[str, ...]] = get_args(Preferred)
LABELED: tuple[State, ...] = ("shadow", "ready", "promoted")
MAX_LABELS = 1000
"""At a time."""


class AnswerPair(Struct, frozen=True):
    """What was asked, the student's answer, and the incumbent's."""

    prompt: str
    answer: str
    other: str


class JudgedPair(Struct, frozen=True):
    """What a judge says of a pair, and what that cost."""

    verdict: Verdict
    nano_usd: int = 0


Compare = Callable[[StudentRow, Sequence[AnswerPair]], Sequence[JudgedPair]]
"""What the judge of a student says of pairs; of fewer where it may be asked no more today."""


class PairToLabel(Struct, frozen=True, kw_only=True):
    """Two answers of which nobody sees whose they are."""

    pair: str
    prompt: str
    first: str
    second: str


class PairLabel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of both answers a person prefers."""

    pair: str
    preferred: Preferred


class JudgeProgress(Struct, frozen=True, kw_only=True):
    """How a student stands that a judge compares with the incumbent: pairs by what the judge said, what they
    cost, labels of people, in what part of the pairs both agree and that part's lower bound, and about how
    many more labels are needed (0: none; None: people say that it is too bad)."""

    model: str
    compared: int
    verdicts: Mapping[str, int]
    usd: float
    labels: int
    skipped: int
    agreement: float
    agreement_lower: float
    missing: int | None

    @property
    def line(self) -> str:
        """In a sentence."""
        text = f"the judge {self.model} has compared {self.compared:,} pairs for ${self.usd:.4f}"
        text += "".join(f", {count:,} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        text += f"; people have labeled {self.labels:,} of them ({self.skipped:,} skipped)"
        if self.missing is None:
            return f"{text}, by which the student is too bad"
        return text + (f": about {self.missing:,} more labels are needed" if self.missing else "")


class Labeled(Struct, frozen=True, kw_only=True):
    """Labels were kept; how the student stands by them."""

    kept: int
    state: State
    judge: JudgeProgress


def prompt_of(example: TaskExample) -> str:
    """What was asked, as a judge reads it."""
    return _prompt_of(example.messages, example.question)


def _prompt_of(messages: bytes, question: str) -> str:
    said = msgspec.json.decode(messages, type=list[dict[str, str | None]])
    if not said:
        return question
    return conversation_text([(one.get("role") or "", one.get("content") or "") for one in said])


def conversation_text(said: Sequence[tuple[str, str]]) -> str:
    """A conversation as people and judges read it; a lone question as it is."""
    return said[0][1] if len(said) == 1 else "\n\n".join(f"{role}: {text}" for role, text in said)


def keep(
    connection: Connection, student: StudentRow, example: int, answer: str, comparison: JudgedPair
) -> None:
    """Keep what a judge has said. Pairs are labeled by their random place; it also says which answer is shown
    first."""
    connection.execute(
        "INSERT INTO comparisons (student, example, place, at_s, answer, verdict, nano_usd) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(student.id, example, secrets.token_bytes(8), time.time(), answer),
            *(comparison.verdict, comparison.nano_usd),
        ),
    )


def compared_since(database: Database, at_s: float) -> int:
    """How many pairs judges have compared since then."""
    [(count,)] = database.query("SELECT count(*) FROM comparisons WHERE at_s > ?", (at_s,))
    return int(cast("int", count))


def judged_student(registry: Registry, task: str) -> StudentRow:
    """The student of a task whose answers are labeled; InvalidRequest where there is none."""
    found = registry.student(task, *LABELED)
    if found.card.evaluator != "judge":
        raise InvalidRequest(
            f"student {found.id} of task {task} is compared by equality, which needs no labels: set its "
            f"evaluator with `headrace adapt tasks --evaluator {task} judge`, and train again",
            param="task",
        )
    return found


def pairs_to_label(database: Database, task: str, limit: int) -> list[PairToLabel]:
    """Pairs that nobody has labeled, in the order in which they should be."""
    student = judged_student(Registry(database), task)
    rows = database.query(
        "SELECT pair.example, pair.place, pair.answer, one.answer, one.question, one.messages "
        "FROM comparisons pair JOIN examples one ON one.id = pair.example "
        "WHERE pair.student = ? AND pair.label IS NULL ORDER BY pair.place LIMIT ?",
        (student.id, limit),
    )
    found: list[PairToLabel] = []
    for example, place, answer, other, question, messages in rows:
        shown = (str(answer), str(other))
        first, second = shown[::-1] if _is_turned(cast("bytes", place)) else shown
        prompt = _prompt_of(cast("bytes", messages), str(question))
        name = f"{student.id}-{example}"
        found.append(PairToLabel(pair=name, prompt=prompt, first=first, second=second))
    return found


def _is_turned(place: bytes) -> bool:
    """Whether the incumbent's answer is shown first."""
    return bool(place[-1] & 1)


def give_labels(database: Database, task: str, labels: Sequence[PairLabel], who: str) -> Labeled:
    """Keep what people say, all of it or nothing; a later label takes the place of an earlier one.
    InvalidRequest names a pair that there is not. The student is looked at by what is known then."""
    if not 1 <= len(labels) <= MAX_LABELS:
        raise InvalidRequest(f"{len(labels):,} labels are given: give 1 to {MAX_LABELS:,}", param="labels")
    registry = Registry(database)
    with database.transaction() as connection:
        student = judged_student(registry, task)
        for one in labels:
            _keep_label(connection, student, one, who)
        decide(registry, student)
    student = registry.student(task, *LABELED, "inferior")
    return Labeled(kept=len(labels), state=student.state, judge=progress_of(registry, student))


def _keep_label(connection: Connection, student: StudentRow, label: PairLabel, who: str) -> None:
    name, _, number = label.pair.rpartition("-")
    rows: list[tuple[bytes]] = []
    if name == student.id and number.isascii() and number.isdigit() and len(number) < 19:
        rows = connection.execute(
            "SELECT place FROM comparisons WHERE student = ? AND example = ?", (student.id, int(number))
        ).fetchall()
    if not rows:
        raise InvalidRequest(
            f"student {student.id} has no pair {label.pair!r:.60}: it is another student's, or its example "
            "was deleted meanwhile; list them anew",
            param="labels",
        )
    person = {"tie": 0, "skip": SKIPPED}.get(label.preferred)
    if person is None:
        person = 1 if (label.preferred == "1") != _is_turned(rows[0][0]) else -1
    connection.execute(
        "UPDATE comparisons SET label = ?, labeled_s = ?, labeled_by = ? WHERE student = ? AND example = ?",
        (label.preferred, time.time(), who, student.id, int(number)),
    )
    connection.execute(
        "UPDATE evidence SET person = ? WHERE student = ? AND example = ?", (person, student.id, int(number))
    )


def decide(registry: Registry, student: StudentRow) -> None:
    """Look at the evidence of a student that is judged; the first result besides "open" is final."""
    counts, _ = registry.counts(student.id)
    labels = registry.calibration(student.id)
    found = judged_standing(counts, bounds_of(labels, student.card.margin, student.card.alpha))
    if found != "open":
        detail = f"better {counts.better}, same {counts.same}, worse {counts.worse}, {labels.labels} labels"
        registry.move(student, ("shadow",), found, detail)


def progress_of(registry: Registry, student: StudentRow) -> JudgeProgress:
    """How a student stands that a judge compares."""
    rows = registry.database.query(
        "SELECT verdict, count(*), sum(nano_usd) FROM comparisons WHERE student = ? GROUP BY verdict",
        (student.id,),
    )
    counts, _ = registry.counts(student.id)
    labels = registry.calibration(student.id)
    agreement, lower = labels.agreement
    verdicts = {str(verdict): int(cast("int", count)) for verdict, count, _ in rows}
    return JudgeProgress(
        model=student.judge,
        compared=sum(verdicts.values()),
        verdicts=verdicts,
        usd=sum(int(cast("int", nano)) for _, _, nano in rows) / 1e9,
        labels=labels.labels,
        skipped=labels.skipped,
        agreement=agreement,
        agreement_lower=lower,
        missing=missing_labels(counts, labels, student.card.margin, student.card.alpha),
    )
