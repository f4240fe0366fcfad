"""Students beside the incumbent: what they would have said to real requests, looked at after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from headrace.adapt.alerts import raise_alert
from headrace.adapt.evidence import Standing, lower_bound, standing
from headrace.adapt.examples import ExampleStore
from headrace.adapt.ladder import TaskExample, task_examples
from headrace.adapt.registry import Registry, State, StudentRow
from headrace.adapt.students import Student, StudentAnswer, is_same
from headrace.adapt.tasks import Embed, embed_examples
from headrace.gateway.drift import DriftAlarm

LEAST_PAIRS = 20
"""Of a team, before the part of each of its keys is bounded."""
SLICE_PAIRS = 30
SLICE_MARGINS = 3
NEW_ANSWERS = 0.1
"""Part of the answers of a task that its student may not know."""
MONTH_S = 30 * 86_400.0


class Prospect(Struct, frozen=True, kw_only=True):
    """How a student stands, and what it would save. `lower` bounds the mean difference of quality from below,
    at whatever time one looks. `slices` are groups of questions in which it is much worse."""

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
    slices: list[int]

    @property
    def line(self) -> str:
        """In a sentence."""
        paid = 1 - self.answered
        text = (
            f"task {self.task} ({self.name}): student {self.student} ({self.rung}) is {self.state}: it "
            f"answers {self.answered:.0%} of the requests, so that you pay {paid:.0%} of today's "
            f"${self.usd_per_month:,.2f} a month, and saves ${self.saves_usd_per_month:,.2f} at present "
            f"traffic; quality differs by {self.difference:+.1%}, more than {self.lower:+.1%} at 95 % "
            f"({self.examples:,} examples)"
        )
        if self.rung == "lora":
            text += "; the time that it takes on this machine is not counted"
        if self.slices:
            text += f"; much worse in the groups {', '.join(map(str, self.slices))}"
        return text


Written = Callable[[StudentRow, Sequence[TaskExample]], Sequence[StudentAnswer]]
"""What a student that writes says to the questions of examples."""
AT_A_TIME = 64
"""Answers that a student writes before they are looked at."""


def judge(
    registry: Registry, student: StudentRow, examples: Sequence[TaskExample], written: Written | None = None
) -> Standing:
    """Look at examples that came after the student was made, in their order, each once. The first result
    besides "open" is final, and moves the student to "ready" or "inferior". All of it is kept, or nothing.
    One that writes is asked by `written`, some questions at a time."""
    if not student.model.writes:
        return _judged(registry, student, examples)
    if written is None:
        return "open"
    rows = registry.database.query("SELECT example FROM evidence WHERE student = ?", (student.id,))
    seen = {one for (one,) in rows}
    unseen = [one for one in examples if one.id not in seen and one.id > student.last_example]
    found: Standing = "open"
    for start in range(0, len(unseen), AT_A_TIME):
        part = unseen[start : start + AT_A_TIME]
        said = dict(zip((one.id for one in part), written(student, part), strict=True))
        found = _judged(registry, student, part, said)
        if found != "open":
            break
    return found


def _judged(
    registry: Registry,
    student: StudentRow,
    examples: Sequence[TaskExample],
    said_of: Mapping[int, StudentAnswer] | None = None,
) -> Standing:
    card = student.card
    with registry.database.transaction() as connection:
        rows = connection.execute(
            "SELECT example, key_name FROM evidence WHERE student = ?", (student.id,)
        ).fetchall()
        state: list[tuple[Standing | State]] = connection.execute(
            "SELECT state FROM students WHERE id = ?", (student.id,)
        ).fetchall()
        stands = state[0][0] if state else "replaced"
        if stands != "shadow":
            return stands if stands == "ready" or stands == "inferior" else "open"
        seen, keys = {int(id) for id, _ in rows}, Counter(str(key) for _, key in rows)
        counts, _ = registry.counts(student.id)
        found: Standing = "open"
        model = Student(student.model)
        for one in examples:
            if one.id in seen or one.id <= student.last_example or _is_surplus(one, keys):
                continue
            if said_of is None:
                [said] = model.answer([one.question], one.vector[None])
            else:
                said = said_of[one.id]
            is_answered = said.text is not None and said.score >= student.threshold
            right = int(is_same(one.said, one.answer))
            difference = (int(is_same(said.text, one.answer)) if is_answered else right) - right
            connection.execute(
                "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?)",
                (student.id, one.id, one.key_name, one.group, difference, int(is_answered)),
            )
            keys[one.key_name] += 1
            counts = counts.with_pair(difference)
            found = standing(counts, card.margin, card.alpha)
            if found != "open":
                detail = f"better {counts.better}, same {counts.same}, worse {counts.worse}"
                registry.move(student, ("shadow",), found, detail)
                break
    return found


def _is_surplus(one: TaskExample, keys: Counter[str]) -> bool:
    """Whether a key of a team would be more than half of the evidence: none decides for the others."""
    total = keys.total()
    return len(keys) > 1 and total >= LEAST_PAIRS and keys[one.key_name] + 1 > (total + 1) / 2


def catch_up(
    store: ExampleStore, student: StudentRow, embed: Embed, written: Written | None = None
) -> Standing:
    """Judge a student by what was collected since it was made."""
    embed_examples(store.database, student.encoder, embed, task=student.task)
    later = task_examples(store.database, student.task, student.encoder, after=student.last_example)
    said = judge(Registry(store.database), student, later, written)
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
        found.append(
            Prospect(
                task=task.id,
                name="".join(c if c.isprintable() else "?" for c in task.name or task.template[:40]),
                student=student.id,
                state=student.state,
                rung=student.card.rung,
                examples=counts.total,
                answered=part,
                difference=counts.difference,
                lower=lower_bound(counts, student.card.alpha),
                usd_per_month=monthly,
                saves_usd_per_month=monthly * part,
                slices=worse_slices(store, student),
            )
        )
    return found


def monthly_usd(store: ExampleStore, task: str) -> float:
    """What the incumbent costs or would cost a month at the rate of requests that was seen: the mean price of
    what it has answered, for all of them."""
    rows = store.database.query(
        "SELECT count(*), min(at_s), max(at_s), avg(CASE WHEN target NOT LIKE 'adapt/%' THEN nano_usd END) "
        "FROM examples WHERE task = ?",
        (task,),
    )
    [(count, first_s, last_s, mean)] = rows
    if not count or mean is None:
        return 0.0
    seconds = max(float(last_s or 0) - float(first_s or 0), 3600.0)
    return float(mean) / 1e9 * float(count) / seconds * MONTH_S


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
