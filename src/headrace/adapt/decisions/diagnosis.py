"""What a task costs, where it goes wrong, and which of it a student could answer already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec import Struct

from headrace.adapt.decisions.shadow import monthly_usd
from headrace.adapt.students.ladder import OpenAnswers, RungResult, TaskExample, without_duplicates
from headrace.adapt.students.rungs.lora import why_not
from headrace.adapt.students.student import LADDER, RUNGS, Rung, Student
from headrace.adapt.students.training import tried_ladder
from headrace.adapt.traffic.examples import ExampleStore, TaskRow
from headrace.adapt.traffic.tasks import Embed
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest

SHOWN = 3
LEAST_OF_GROUP = 5


class FailureMode(Struct, frozen=True):
    """How often something went wrong, and replies in which it did."""

    kind: str
    count: int
    replies: list[str]


class RungReach(Struct, frozen=True, kw_only=True):
    """What a kind of student would do: the part of later examples that it may answer, and of all that it says
    the part that is right."""

    rung: str
    tried: int
    right: float
    share: float
    problem: str


class GroupAgreement(Struct, frozen=True):
    """In a group of questions the part in which the best student says what the large model does."""

    group: int
    examples: int
    right: float


class Diagnosis(Struct, frozen=True, kw_only=True):
    """A task. `rungs` are empty where nothing can be learned, and `missing` says what it lacks."""

    task: str
    name: str
    examples: int
    usd: float
    usd_per_month: float
    median_s: float
    slow_s: float
    distinct_answers: int
    common_answer: float
    failures: list[FailureMode]
    rungs: list[RungReach]
    groups: list[GroupAgreement]
    missing: str


def diagnose(store: ExampleStore, task: TaskRow, settings: AdaptSettings, embed: Embed) -> Diagnosis:
    """Look at a task."""
    rows = store.database.query("SELECT total_s, answer FROM examples WHERE task = ?", (task.id,))
    times = np.array([cast("float", row[0]) for row in rows] or [0.0])
    answers = Counter(str(row[1]) for row in rows)
    rungs, groups, missing = list[RungReach](), list[GroupAgreement](), ""
    try:
        _, parts, results, _ = tried_ladder(store, task.id, settings, embed, "tried")
    except InvalidRequest as error:
        missing = error.message
        if isinstance(error, OpenAnswers) and not why_not(settings.base):
            missing = _only_lora(settings)
    else:
        rungs = [_reach(one) for one in results]
        rungs += [
            RungReach(rung=one, tried=0, right=0.0, share=0.0, problem=_why_not(one, settings))
            for one in LADDER[len(RUNGS) :]
        ]
        groups = _agreement(results, without_duplicates(parts))
        if not any(one.share for one in rungs):
            missing = f"{results[-1].rung}: {results[-1].problem}"
            if not why_not(settings.base):
                missing = _only_lora(settings)
    return Diagnosis(
        task=task.id,
        name=task.name,
        examples=task.examples,
        usd=task.nano_usd / 1e9,
        usd_per_month=monthly_usd(store, task.id),
        median_s=float(np.median(times)),
        slow_s=float(np.quantile(times, 0.95)),
        distinct_answers=len(answers),
        common_answer=max(answers.values(), default=0) / max(len(rows), 1),
        failures=failures(store, task.id),
        rungs=rungs,
        groups=groups,
        missing=missing,
    )


def _why_not(rung: Rung, settings: AdaptSettings) -> str:
    if rung == "tagger":
        return "not tried: it takes a minute, `headrace adapt train` does"
    base = settings.student or settings.base if rung == "distilled" else settings.base
    return why_not(base, rung) or "not tried: it takes minutes to hours, `headrace adapt train` does"


def _only_lora(settings: AdaptSettings) -> str:
    why = _why_not("lora", settings)
    return f"no simple student can answer this task; LoRA on {settings.base} is {why}"


def failures(store: ExampleStore, task: str) -> list[FailureMode]:
    """What went wrong, most often first."""
    rows = store.database.query(
        """SELECT kind, reply_id FROM (
            SELECT outcome AS kind, reply_id, id FROM examples WHERE task = ? AND outcome != 'ok'
            UNION ALL SELECT 'repeated', reply_id, id FROM examples WHERE task = ? AND was_repeated
            UNION ALL SELECT CASE WHEN said.correction IS NOT NULL THEN 'corrected'
                WHEN said.is_accepted = 0 THEN 'not accepted' ELSE 'bad score' END, one.reply_id, one.id
            FROM feedback said JOIN examples one ON one.id = said.example
            WHERE one.task = ? AND (said.correction IS NOT NULL OR said.is_accepted = 0 OR said.score < 0.5)
        ) ORDER BY id DESC""",
        (task, task, task),
    )
    found: dict[str, list[str]] = {}
    for kind, reply in rows:
        found.setdefault(str(kind), []).append(str(reply))
    modes = [FailureMode(kind, len(replies), replies[:SHOWN]) for kind, replies in found.items()]
    return sorted(modes, key=lambda one: (-one.count, one.kind))


def _reach(one: RungResult) -> RungReach:
    return RungReach(
        rung=one.rung,
        tried=one.tried,
        right=one.right / one.tried if one.tried else 0.0,
        share=one.share,
        problem=one.problem,
    )


def _agreement(results: Sequence[RungResult], tried: Sequence[TaskExample]) -> list[GroupAgreement]:
    """By the last rung, which says something to everything."""
    assert results[-1].rung == RUNGS[-1]
    student, counts, right = Student(results[-1].model), Counter[int](), Counter[int]()
    for one in tried:
        if one.group is not None:
            [said] = student.answer([one.question], one.vector[None])
            counts[one.group] += 1
            right[one.group] += said.text == one.answer
    found = [
        GroupAgreement(group, count, right[group] / count)
        for group, count in counts.items()
        if count >= LEAST_OF_GROUP
    ]
    return sorted(found, key=lambda one: one.right)
