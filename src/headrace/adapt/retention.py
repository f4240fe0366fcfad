"""What users have said does not outlive `adapt.retention`, neither as examples nor in students."""

from __future__ import annotations

import time
from typing import cast

import msgspec
from msgspec.structs import replace

from headrace.adapt.decisions.alerts import plain_alerts, raise_alert
from headrace.adapt.decisions.promotion import roll_back
from headrace.adapt.students.registry import Card, Registry, State
from headrace.adapt.students.rungs.served import remove_adapters
from headrace.adapt.students.student import StudentModel, without_expired
from headrace.adapt.traffic.examples import ExampleStore
from headrace.config.adapt_settings import AdaptSettings

SWEEP_S = 600.0
"""Between two sweeps; a tenth of the retention, where that is shorter."""
REWRITE_EVERY = 36
"""Sweeps: the file is written anew four times a day, where anything was deleted."""
IDLE_S = 86_400.0
"""A training that was interrupted so long ago is deleted: it keeps questions, too."""
NEVER_S = 1e300
WAITING: tuple[State, ...] = ("trained", "shadow", "ready")


def sweep_every_s(settings: AdaptSettings) -> float:
    """Seconds between two sweeps."""
    return min(SWEEP_S, settings.retention / 10)


def sweep(store: ExampleStore, settings: AdaptSettings, now_s: float | None = None) -> int:
    """Delete what is older than the retention: examples, questions that students have kept, and trainings
    that were interrupted. How many rows it was. A student that knows nothing any more is retired."""
    if not store.database.exists:
        return 0
    now_s = time.time() if now_s is None else now_s
    before_s = now_s - settings.retention
    with store.database.transaction():
        gone = store.trim(before_s, settings.max_examples)
        gone += _sweep_students(store, before_s)
        gone += plain_alerts(store.database, before_s)
        gone += store.database.execute(
            "DELETE FROM trainings WHERE updated_s < ?", (now_s - min(IDLE_S, settings.retention),)
        )
    store.has_deleted |= gone > 0
    remove_adapters(store.database)
    return gone


def _sweep_students(store: ExampleStore, before_s: float) -> int:
    rows = store.database.query(
        "SELECT id, task, model, card FROM students WHERE oldest_s IS NULL OR oldest_s < ?", (before_s,)
    )
    changed = 0
    for id, task, data, card in rows:
        model = msgspec.msgpack.decode(cast("bytes", data), type=StudentModel)
        made = msgspec.msgpack.decode(cast("bytes", card), type=Card)
        if model.questions and not model.times:  # of an earlier version, which did not keep them
            model = replace(model, times=(made.first_s,) * len(model.questions))
        found = without_expired(model, before_s)
        oldest_s = min(found.times, default=NEVER_S)
        if model.writes:  # what it has of whom cannot be taken apart
            oldest_s = made.last_s
            if oldest_s < before_s:
                oldest_s = NEVER_S
                _retire(store, str(task), str(id))
        if len(found.questions) == len(model.questions):
            store.database.execute("UPDATE students SET oldest_s = ? WHERE id = ?", (oldest_s, id))
            continue
        changed += store.database.execute(
            "UPDATE students SET model = ?, oldest_s = ? WHERE id = ?",
            (msgspec.msgpack.encode(found), oldest_s, id),
        )
        if not found.questions:
            _retire(store, str(task), str(id))
    return changed


def _retire(store: ExampleStore, task: str, student: str) -> None:
    why = "all questions that it has learned are older than adapt.retention"
    registry = Registry(store.database)
    if roll_back(store, task, why=why, student=student) is not None:
        said = f"the student {student} of task {task} is rolled back: {why}"
        raise_alert(store.database, "rolled_back", task, student, said)
        return
    for row in registry.students(*WAITING, task=task):
        if row.id == student:
            registry.move(row, WAITING, "replaced", why)
