"""Students of tasks as they are kept: what they are, how they stand, and every decision about them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from headrace.adapt.students.ladder import RungResult, Split, TaskExample, data_digest
from headrace.adapt.students.student import LADDER, LEAST_SCORE, Rung, StudentModel
from headrace.errors import InvalidRequest
from headrace.evals.calibrated_evidence import JudgeCalibration, calibration_of
from headrace.evals.paired_evidence import PairCounts
from headrace.gateway.gate import Pair
from headrace.storage.database import Database

State = Literal["trained", "shadow", "ready", "inferior", "promoted", "rolled_back", "replaced"]
STATES: Final[tuple[State, ...]] = get_args(State)
Evaluator = Literal["equal", "judge"]


class RungReport(Struct, frozen=True, kw_only=True):
    """How a kind of student did: of later examples the part that it had right (`score`), and the part that
    it may answer; seconds of processor time, and bytes. `why` nothing is certified, or it was not tried."""

    rung: str
    tried: int = 0
    score: float = 0.0
    share: float = 0.0
    seconds: float = 0.0
    bytes: int = 0
    why: str = ""


class Card(Struct, frozen=True, kw_only=True):
    """What a student was made of. `rungs` has of each kind that was tried the part of later examples that it
    may answer, and of what it said the part that was right; `skipped` why others were not; `report` has all
    of them. `exposed` is what it gives away of its lessons, `canaries` digests of those of the settings that
    were searched for; `lineage` the models of this machine that it was made of. `evaluator` is what compares
    it with the incumbent: equality, or a judge, where `share` is not certified."""

    rung: str
    encoder: str
    answers: int
    lessons: int
    held_out: int
    first_example: int
    last_example: int
    first_s: float
    last_s: float
    keys: dict[str, int]
    data_sha256: str
    weights: str
    margin: float
    alpha: float
    risk: float
    share: float
    rungs: dict[str, tuple[float, float]]
    exposed: list[str] = []
    canaries: list[str] = []
    skipped: dict[str, str] = {}
    lineage: dict[str, str] = {}
    report: list[RungReport] = []
    evaluator: Evaluator = "equal"


class StudentRow(Struct, frozen=True, kw_only=True):
    """A student with its standing. `last_example` is the last that it has seen in any way; `route` is the
    model whose requests it gets, of which a part `share`; `judge` the model that compares its answers."""

    id: str
    task: str
    created_s: float
    state: State
    encoder: str
    last_example: int
    threshold: float
    model: StudentModel
    pairs: list[Pair]
    card: Card
    share: float
    audit: float
    route: str
    promoted_s: float | None
    judge: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether a judge compares its answers with the incumbent's."""
        return self.card.evaluator == "judge"


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided about a student, when and by whom: a person's name, or "headrace"."""

    at_s: float
    task: str
    student: str
    what: str
    who: str
    detail: str


_NAMES = StudentRow.__struct_fields__
_BLOBS: dict[str, Any] = {"model": StudentModel, "pairs": list[Pair], "card": Card}


class Registry:
    """Reads and writes the file. Every call may raise StoreError; not for the event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(
        self, task: str, student: str, chosen: RungResult, card: Card, pairs: list[Pair], encoder: str
    ) -> None:
        """Keep a new student; it takes the place of earlier ones of the task that are not promoted. One that
        a judge compares has no certificate yet: all of its answers are taken."""
        certified = chosen.calibration
        assert certified is not None or card.evaluator == "judge"
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE students SET state = 'replaced' WHERE task = ? AND state IN "
                "('trained', 'shadow', 'ready')",
                (task,),
            )
            connection.execute(
                "INSERT INTO students (id, task, created_s, state, encoder, last_example, threshold, model, "
                "pairs, card) VALUES (?, ?, ?, 'trained', ?, ?, ?, ?, ?, ?)",
                (
                    *(student, task, time.time(), encoder, card.last_example),
                    LEAST_SCORE if certified is None else certified.certificate.threshold,
                    *(msgspec.msgpack.encode(one) for one in (chosen.model, pairs, card)),
                ),
            )
            self.note(task, student, "trained", f"{card.rung} on {card.lessons} examples")

    def note(self, task: str, student: str, what: str, detail: str, who: str = "headrace") -> None:
        """Add to the record of decisions."""
        self.database.execute(
            "INSERT INTO decisions (at_s, task, student, what, who, detail) VALUES (?, ?, ?, ?, ?, ?)",
            (time.time(), task, student, what, who, detail),
        )

    def decisions(self, task: str) -> list[Decision]:
        """All about the students of a task, in their order."""
        rows = self.database.query(
            "SELECT at_s, task, student, what, who, detail FROM decisions WHERE task = ? ORDER BY id", (task,)
        )
        names = Decision.__struct_fields__
        return [Decision(**dict(zip(names, row, strict=True))) for row in rows]  # type: ignore[arg-type]

    def students(self, *states: State, task: str | None = None, limit: int = -1) -> list[StudentRow]:
        """Students in these states, the newest first; up to `limit`, where that is no -1."""
        if not self.database.exists:
            return []
        marks = ", ".join("?" for _ in states)
        rows = self.database.query(
            f"SELECT {', '.join(_NAMES)} FROM students WHERE state IN ({marks}) AND (? IS NULL OR task = ?) "
            "ORDER BY created_s DESC LIMIT ?",
            (*states, task, task, limit),
        )
        return [_row(row) for row in rows]

    def student(self, task: str, *states: State) -> StudentRow:
        """The newest of a task in these states; InvalidRequest says what is missing."""
        found = self.students(*states, task=task)
        if not found:
            known = self.database.query(
                "SELECT id, state FROM students WHERE task = ? ORDER BY created_s DESC LIMIT 3", (task,)
            )
            shown = ", ".join(f"{name} is {state}" for name, state in known) or (
                f"it has no student yet, `headrace adapt train {task}` makes one"
            )
            raise InvalidRequest(
                f"task {task} has no student that is {' or '.join(states)}: {shown}", param="task"
            )
        return found[0]

    def move(
        self, student: StudentRow, before: tuple[State, ...], after: State, detail: str = "", **more: Any
    ) -> bool:
        """Change a student's state, if it still is in one of `before`; with further columns."""
        who = str(more.pop("who", "headrace"))
        columns = "".join(f", {name} = ?" for name in more)
        marks = ", ".join("?" for _ in before)
        with self.database.transaction() as connection:
            changed = connection.execute(
                f"UPDATE students SET state = ?{columns} WHERE id = ? AND state IN ({marks})",
                (after, *more.values(), student.id, *before),
            ).rowcount
            if changed:
                self.note(student.task, student.id, after, detail, who)
        return changed > 0

    def counts(self, student: str) -> tuple[PairCounts, int]:
        """The evidence about a student, and how many of the examples it has answered."""
        rows = self.database.query(
            "SELECT difference, count(*), coalesce(sum(is_answered), 0) FROM evidence WHERE student = ? "
            "GROUP BY difference",
            (student,),
        )
        known = {int(one): (int(n), int(answered)) for one, n, answered in rows}  # type: ignore[call-overload]
        better, same, worse = (known.get(one, (0, 0)) for one in (1, 0, -1))
        return PairCounts(better[0], same[0], worse[0]), better[1] + same[1] + worse[1]

    def calibration(self, student: str) -> JudgeCalibration:
        """What people's labels say about the judge of a student."""
        rows = self.database.query(
            "SELECT was_asked, difference, person FROM evidence WHERE student = ? ORDER BY example",
            (student,),
        )
        return calibration_of((bool(asked), said, person) for asked, said, person in rows)  # type: ignore[arg-type]

    def nano_usd_of_answer(self, student: str) -> float | None:
        """What an answer of a student takes of this machine by the mean; None where that is not known."""
        [(mean,)] = self.database.query("SELECT avg(nano_usd) FROM evidence WHERE student = ?", (student,))
        return None if mean is None else float(mean)

    def judged_pairs(self, student: str) -> list[Pair]:
        """What a judged student has answered, with its scores; wrong is what the judge found worse."""
        rows = self.database.query(
            "SELECT score, difference FROM evidence WHERE student = ? AND is_answered AND score IS NOT NULL "
            "ORDER BY example",
            (student,),
        )
        return [Pair(score=score, is_wrong=said == -1) for score, said in rows]  # type: ignore[arg-type]


def _row(row: tuple[Any, ...]) -> StudentRow:
    values = dict(zip(_NAMES, row, strict=True))
    for name, kind in _BLOBS.items():
        values[name] = msgspec.msgpack.decode(values[name], type=kind)
    return StudentRow(**values)


def new_student() -> str:
    """A name for a student."""
    return f"s-{secrets.token_hex(4)}"


def card_of(
    chosen: RungResult,
    results: list[RungResult],
    parts: Split,
    seen: list[TaskExample],
    bounds: tuple[float, float, float],
    encoder: str,
) -> Card:
    """The card of a student; `bounds` are margin, alpha and risk, `seen` all that had part in its making."""
    keys: dict[str, int] = {}
    for one in parts.lessons:
        keys[one.key_name] = keys.get(one.key_name, 0) + 1
    return Card(
        rung=chosen.rung,
        encoder=encoder,
        answers=len(chosen.model.answers),
        lessons=len(parts.lessons),
        held_out=len(parts.held_out),
        first_example=seen[0].id,
        last_example=seen[-1].id,
        first_s=seen[0].at_s,
        last_s=seen[-1].at_s,
        keys=keys,
        data_sha256=data_digest(parts.lessons),
        weights=chosen.model.digest,
        margin=bounds[0],
        alpha=bounds[1],
        risk=bounds[2],
        share=chosen.share,
        rungs={one.rung: (one.share, one.right / one.tried if one.tried else 0.0) for one in results},
    )


def report_of(results: Sequence[RungResult], skipped: Mapping[Rung, str]) -> list[RungReport]:
    """Of all rungs of the ladder, in their order."""
    tried = {
        one.rung: RungReport(
            rung=one.rung,
            tried=one.tried,
            score=one.right / one.tried if one.tried else 0.0,
            share=one.share,
            seconds=one.seconds,
            bytes=one.bytes,
            why=one.problem,
        )
        for one in results
    }
    return [tried.get(one, RungReport(rung=one, why=skipped.get(one, ""))) for one in LADDER]


def person() -> str:
    """Who runs a command, as far as the system knows."""
    return os.environ.get("SUDO_USER") or os.environ.get("USER") or f"uid {os.getuid()}"
