"""Students beside the incumbent: what they would have said to real requests, looked at after each."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from sqlite3 import Connection

import numpy as np
from msgspec import Struct

from headrace.adapt.decisions.alerts import raise_alert
from headrace.adapt.decisions.comparisons import (
    VALUES,
    AnswerPair,
    Compare,
    JudgedPair,
    JudgeProgress,
    keep,
    progress_of,
    prompt_of,
)
from headrace.adapt.students.ladder import TaskExample, task_examples
from headrace.adapt.students.registry import Registry, State, StudentRow
from headrace.adapt.students.student import RUNGS, Student, StudentAnswer, is_same
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import Embed, embed_examples
from headrace.evals.calibrated_evidence import (
    bounds_of,
    judged_difference,
    judged_lower_bound,
    judged_standing,
)
from headrace.evals.paired_evidence import PairCounts, Standing, lower_bound, standing
from headrace.gateway.drift import DriftAlarm

LEAST_PAIRS = 20
"""Of a team, before the part of each of its keys is bounded."""
SLICE_PAIRS = 30
SLICE_MARGINS = 3
NEW_ANSWERS = 0.1
"""Part of the answers of a task that its student may not know."""
MONTH_S = 30 * 86_400.0


class Prospect(Struct, frozen=True, kw_only=True):
    """How a student stands, and what it would save, less what it takes of this machine, where that is known.
    `lower` bounds the mean difference of quality from below, at whatever time one looks. `slices` are groups
    of questions in which it is much worse."""

    task: str
    name: str
    student: str
    state: str
    rung: str
    examples: int
    answered: float
    difference: float
    lower: float
    usd_per_month: float
    saves_usd_per_month: float
    machine_usd_per_month: float | None
    slices: list[int]
    judge: JudgeProgress | None = None

    @property
    def _machine(self) -> str:
        if self.machine_usd_per_month is None:
            return (
                ""
                if self.rung in RUNGS
                else " (the time that it takes on this machine is not counted: see node_usd_per_hour)"
            )
        return f" (less ${self.machine_usd_per_month:,.2f} for its training and answers on this machine)"

    @property
    def line(self) -> str:
        """In a sentence."""
        paid = 1 - self.answered
        text = (
            f"task {self.task} ({self.name}): student {self.student} ({self.rung}) is {self.state}: it "
            f"answers {self.answered:.0%} of the requests, so that you pay {paid:.0%} of today's "
            f"${self.usd_per_month:,.2f} a month, and saves ${self.saves_usd_per_month:,.2f} at present "
            f"traffic{self._machine}; "
        )
        if self.examples:
            text += f"quality differs by {self.difference:+.1%}, more than {self.lower:+.1%} at 95 % "
            text += f"({self.examples:,} examples)"
        else:
            text += "its quality is not measured yet: no requests came since it was made"
        if self.judge is not None:
            text += f"; {self.judge.line}"
        if self.slices:
            text += f"; much worse in the groups {', '.join(map(str, self.slices))}"
        return text


Written = Callable[[StudentRow, Sequence[TaskExample]], Sequence[StudentAnswer]]
"""What a student that writes says to the questions of examples."""
AT_A_TIME = 64
"""Answers that a student writes before they are looked at."""
COMPARED_AT_A_TIME = 8
"""Answers of a student that is judged: what a judge says of more would be lost when a server stops."""


def judge(
    registry: Registry,
    student: StudentRow,
    examples: Sequence[TaskExample],
    written: Written | None = None,
    compare: Compare | None = None,
) -> Standing:
    """Look at examples that came after the student was made, in their order, each once. The first result
    besides "open" is final, and moves the student to "ready" or "inferior". All of it is kept, or nothing.
    One that writes is asked by `written`, and `compare` asks the judge of one that is judged, some questions
    at a time."""
    writes, is_judged = student.model.writes, student.is_judged
    if not writes and not is_judged:
        return _judged(registry, student, examples)
    if (writes and written is None) or (is_judged and compare is None):
        return "open"
    found: Standing = "open"
    unseen = _unseen(registry, student, examples)
    at_a_time = COMPARED_AT_A_TIME if is_judged else AT_A_TIME
    for start in range(0, len(unseen), at_a_time):
        part = unseen[start : start + at_a_time]
        answers = written(student, part) if written is not None and writes else _chosen(student, part)
        said = dict(zip((one.id for one in part), answers, strict=True))
        compared = None
        if compare is not None and is_judged:
            compared = _compared(student, part, said, compare)
            part = part[: compared.upto]
        found = _judged(registry, student, part, said, compared)
        if found != "open" or (compared is not None and compared.is_short):
            break
    return found


def _chosen(student: StudentRow, examples: Sequence[TaskExample]) -> list[StudentAnswer]:
    vectors = np.stack([one.vector for one in examples])
    return Student(student.model).answer([one.question for one in examples], vectors)


def _unseen(registry: Registry, student: StudentRow, examples: Sequence[TaskExample]) -> list[TaskExample]:
    """Those that are evidence, and are not yet."""
    rows = registry.database.query("SELECT example, key_name FROM evidence WHERE student = ?", (student.id,))
    seen, found = {one for one, _ in rows}, list[TaskExample]()
    keys = Counter(dict.fromkeys(student.card.keys, 0))  # who has taught it shares it, also who is silent
    keys.update(str(key) for _, key in rows)
    waiting = deque[TaskExample]()  # of the one key that is most of the evidence, until others have come
    for one in examples:
        if one.id in seen or one.id <= student.last_example:
            continue
        waiting.append(one)
        if not _is_surplus(one, keys):
            waiting.rotate(1)
        while waiting and not _is_surplus(waiting[0], keys):
            keys[waiting[0].key_name] += 1
            found.append(waiting.popleft())
    return found


class _Compared(Struct, frozen=True):
    """What a judge has said of examples. Of those from place `upto` on it was not asked."""

    said: Mapping[int, JudgedPair]
    upto: int
    is_short: bool


def _compared(
    student: StudentRow, part: Sequence[TaskExample], said: Mapping[int, StudentAnswer], compare: Compare
) -> _Compared:
    """Have those compared in which the student says something else than the incumbent."""
    places = [place for place, one in enumerate(part) if _differs(student, one, said[one.id])]
    pairs = [AnswerPair(prompt_of(part[at]), said[part[at].id].text or "", part[at].said) for at in places]
    found: Sequence[JudgedPair] = compare(student, pairs) if pairs else ()
    is_short = len(found) < len(pairs)
    upto = places[len(found)] if is_short else len(part)
    return _Compared({part[at].id: one for at, one in zip(places, found, strict=False)}, upto, is_short)


def _is_answered(student: StudentRow, said: StudentAnswer) -> bool:
    return said.text is not None and said.score >= student.threshold


def _differs(student: StudentRow, one: TaskExample, said: StudentAnswer) -> bool:
    return _is_answered(student, said) and not is_same(said.text, one.said)


def _judged(
    registry: Registry,
    student: StudentRow,
    examples: Sequence[TaskExample],
    said_of: Mapping[int, StudentAnswer] | None = None,
    compared: _Compared | None = None,
) -> Standing:
    card = student.card
    with registry.database.transaction() as connection:
        state: list[tuple[Standing | State]] = connection.execute(
            "SELECT state FROM students WHERE id = ?", (student.id,)
        ).fetchall()
        stands = state[0][0] if state else "replaced"
        if stands != "shadow":
            return stands if stands == "ready" or stands == "inferior" else "open"
        there = None if compared is None else _still_there(connection, student.task)
        counts, _ = registry.counts(student.id)
        bounds = None
        if compared is not None:
            bounds = bounds_of(registry.calibration(student.id), card.margin, card.alpha)
        found: Standing = "open"
        model = Student(student.model)
        for one in _unseen(registry, student, examples):
            if there is not None and one.id not in there:  # deleted while the judge was asked
                continue
            if said_of is None:
                [said] = model.answer([one.question], one.vector[None])
            else:
                said = said_of[one.id]
            is_answered = _is_answered(student, said)
            comparison = None if compared is None else compared.said.get(one.id)
            if compared is None:
                right = int(is_same(one.said, one.answer))
                difference = (int(is_same(said.text, one.answer)) if is_answered else right) - right
            else:
                difference = 0 if comparison is None else VALUES.get(comparison.verdict, 0)
            connection.execute(
                "INSERT INTO evidence (student, example, key_name, task_group, difference, is_answered, "
                "was_asked, score, nano_usd) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(student.id, one.id, one.key_name, one.group, difference, int(is_answered)),
                    *(int(comparison is not None), said.score, said.nano_usd),
                ),
            )
            if comparison is not None:
                keep(connection, student, one.id, said.text or "", comparison)
            counts = counts.with_pair(difference)
            if bounds is None:
                found = standing(counts, card.margin, card.alpha)
            else:
                found = judged_standing(counts, bounds)
            if found != "open":
                detail = f"better {counts.better}, same {counts.same}, worse {counts.worse}"
                registry.move(student, ("shadow",), found, detail)
                break
    return found


def _still_there(connection: Connection, task: str) -> set[int]:
    rows = connection.execute("SELECT id FROM examples WHERE task = ?", (task,)).fetchall()
    return {int(id) for (id,) in rows}


def _is_surplus(one: TaskExample, keys: Counter[str]) -> bool:
    """Whether a key of a team is more than half of the evidence already: none decides for the others."""
    total = keys.total()
    return len(keys) > 1 and total >= LEAST_PAIRS and 2 * keys[one.key_name] > total


def catch_up(
    store: ExampleStore,
    student: StudentRow,
    embed: Embed,
    written: Written | None = None,
    compare: Compare | None = None,
) -> Standing:
    """Judge a student by what was collected since it was made."""
    embed_examples(store.database, student.encoder, embed, task=student.task)
    later = task_examples(store.database, student.task, student.encoder, after=student.last_example)
    said = judge(Registry(store.database), student, later, written, compare)
    if said == "ready":
        tell_ready(store, student)
    return said


def tell_ready(store: ExampleStore, student: StudentRow) -> None:
    """Tell a person that a student can be promoted, once."""
    line = next((one.line for one in prospects(store) if one.student == student.id), "")
    task = student.task
    text = f"{line}; `headrace adapt promote {task}` lets it answer"
    raise_alert(store.database, "ready", task, student.id, text)


def prospects(store: ExampleStore) -> list[Prospect]:
    """Students that are judged, proposed or promoted, with what they save."""
    registry, found = Registry(store.database), list[Prospect]()
    tasks = {one.id: one for one in store.tasks()}
    for student in registry.students("shadow", "ready", "promoted"):
        task = tasks.get(student.task)
        if task is None:
            continue
        counts, answered = registry.counts(student.id)
        part = answered / counts.total if counts.total else student.card.share
        monthly = monthly_usd(store, student.task)
        difference, lower = measured(registry, student, counts)
        machine = machine_usd_per_month(store, student)
        found.append(
            Prospect(
                task=task.id,
                name="".join(c if c.isprintable() else "?" for c in task.name or task.template[:40]),
                student=student.id,
                state=student.state,
                rung=student.card.rung,
                examples=counts.total,
                answered=part,
                difference=difference,
                lower=lower,
                usd_per_month=monthly,
                saves_usd_per_month=monthly * part - (machine or 0.0),
                machine_usd_per_month=machine,
                slices=worse_slices(store, student),
                judge=progress_of(registry, student) if student.is_judged else None,
            )
        )
    return found


def measured(registry: Registry, student: StudentRow, counts: PairCounts) -> tuple[float, float]:
    """The mean difference of quality and what it is above, by a student's pairs: in the eyes of people where
    a judge compares."""
    if not student.is_judged:
        return counts.difference, lower_bound(counts, student.card.alpha)
    labels = registry.calibration(student.id)
    return judged_difference(counts, labels), judged_lower_bound(counts, labels, student.card.alpha)


def monthly_usd(store: ExampleStore, task: str) -> float:
    """What the incumbent costs or would cost a month at the rate of requests that was seen: the mean price of
    what it has answered, for all of them."""
    [(mean,)] = store.database.query(
        "SELECT avg(nano_usd) FROM examples WHERE task = ? AND target NOT LIKE 'adapt/%'", (task,)
    )
    return 0.0 if mean is None else float(mean) / 1e9 * monthly_requests(store, task)


def monthly_requests(store: ExampleStore, task: str) -> float:
    """Requests of a task in a month, at the rate that was seen."""
    [(count, first_s, last_s)] = store.database.query(
        "SELECT count(*), min(at_s), max(at_s) FROM examples WHERE task = ?", (task,)
    )
    return float(count or 0) / max(float(last_s or 0) - float(first_s or 0), 3600.0) * MONTH_S


def machine_usd_per_month(store: ExampleStore, student: StudentRow) -> float | None:
    """What a student takes of this machine: its answers to all requests of its task, as the ledger books
    them, and a training in a month, by the part of the processor cores. None where that has no price."""
    if not store.usd_per_hour:
        return None
    training = (
        sum(one.seconds for one in student.card.report) / (os.cpu_count() or 1) / 3600 * store.usd_per_hour
    )
    if not student.model.writes:  # what looks up or multiplies a vector takes next to nothing
        return training
    answer = Registry(store.database).nano_usd_of_answer(student.id)
    return None if answer is None else training + answer / 1e9 * monthly_requests(store, student.task)


def worse_slices(store: ExampleStore, student: StudentRow) -> list[int]:
    """Groups of questions in which the student is worse by several margins, of those with enough examples."""
    rows = store.database.query(
        "SELECT one.task_group, avg(said.difference) FROM evidence said "
        "JOIN examples one ON one.id = said.example WHERE said.student = ? AND one.task_group IS NOT NULL "
        "GROUP BY one.task_group HAVING count(*) >= ?",
        (student.id, SLICE_PAIRS),
    )
    least = -SLICE_MARGINS * student.card.margin
    return sorted(int(group) for group, mean in rows if float(mean) < least)  # type: ignore[arg-type]


def worse_keys(store: ExampleStore, student: StudentRow) -> list[str]:
    """Keys of a team for which the student is worse by several margins: no key's feedback lets in what is bad
    for the others."""
    rows = store.database.query(
        "SELECT key_name, avg(difference) FROM evidence WHERE student = ? GROUP BY key_name "
        "HAVING count(*) >= ?",
        (student.id, LEAST_PAIRS),
    )
    least = -SLICE_MARGINS * student.card.margin
    return sorted(str(key) for key, mean in rows if float(mean) < least)  # type: ignore[arg-type]


def check_drift(store: ExampleStore, student: StudentRow, later: Sequence[TaskExample]) -> bool:
    """Whether a task gets other answers today than those that its student has learned: looked at after each
    example (`gateway.drift`). A person is told, once."""
    if student.model.writes:  # it says what it has never read; audits look at that
        return False
    known, alarm = set(student.model.answers), DriftAlarm(NEW_ANSWERS)
    for one in later:
        if alarm.add(one.said not in known):
            text = (
                f"the traffic of task {student.task} has changed: of {alarm.audited:,} answers since student "
                f"{student.id} was made {alarm.wrong:,} are ones that it has never learned; "
                f"`headrace adapt train {student.task}` makes another"
            )
            raise_alert(store.database, "drift", student.task, student.id, text)
            return True
    return False
