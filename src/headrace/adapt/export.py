"""All that is kept, as lines of JSON: of a key, or of all."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from headrace.adapt.students.student import StudentModel
from headrace.adapt.traffic.examples import ExampleStore
from headrace.storage.database import Database

_TABLES = {
    "task": (
        "tasks",
        "id",
        ("id", "key_group", "endpoint", "template", "tools", "form", "name", "evaluator", "created_s"),
    ),
    "group": ("task_groups", "task", ("task", "number", "name", "size", "encoder")),
    "decision": ("decisions", "task", ("at_s", "task", "student", "what", "who", "detail")),
    "alert": ("alerts", "task", ("id", "at_s", "kind", "task", "student", "text", "delivered_s")),
    "training": ("trainings", "task", ("task", "student", "started_s", "updated_s", "stage")),
}
_STUDENT = ("id", "task", "created_s", "state", "threshold", "share", "audit", "route", "promoted_s", "judge")
_EVIDENCE = (
    *("student", "example", "key_name", "task_group", "difference", "is_answered"),
    *("was_asked", "score", "person"),
)
_COMPARED = ("student", "example", "at_s", "answer", "verdict", "label", "labeled_s", "labeled_by")


def everything(store: ExampleStore, key_name: str | None = None) -> list[dict[str, Any]]:
    """What is kept, of a key or of all; `record` says what a line is. Numbers that are computed from it, such
    as vectors, are left out. Of a student that learned from several keys one of them sees no question."""
    if not store.database.exists:
        return []
    found = [{"record": "example", **one} for one in store.export(key_name)]
    students = _students(store.database, key_name)
    tasks = {str(one["task"]) for one in (*found, *students)}
    for record, (table, column, names) in _TABLES.items():
        for row in store.database.query(f"SELECT {column}, {', '.join(names)} FROM {table}"):
            if key_name is None or row[0] in tasks:
                found.append({"record": record, **dict(zip(names, row[1:], strict=True))})
    rows = store.database.query(f"SELECT {', '.join(_EVIDENCE)} FROM evidence")
    found += students
    found += [
        {"record": "evidence", **dict(zip(_EVIDENCE, row, strict=True))}
        for row in rows
        if key_name in (None, row[2])
    ]
    pairs = store.database.query(
        f"SELECT one.key_name, {', '.join(f'pair.{name}' for name in _COMPARED)} FROM comparisons pair "
        "JOIN examples one ON one.id = pair.example ORDER BY pair.student, pair.example"
    )
    found += [
        {"record": "comparison", **dict(zip(_COMPARED, row, strict=True))}
        for key, *row in pairs
        if key_name in (None, key)
    ]
    if key_name is None:
        found += [{"record": "dropped", "reason": one, "count": n} for one, n in store.dropped().items()]
    return found


def _students(database: Database, key_name: str | None) -> list[dict[str, Any]]:
    """Students with their cards and texts; of a key those that have learned from it."""
    found: list[dict[str, Any]] = []
    for *values, data, card in database.query(f"SELECT {', '.join(_STUDENT)}, model, card FROM students"):
        shown: dict[str, Any] = msgspec.msgpack.decode(cast("bytes", card))
        if key_name is not None and key_name not in shown["keys"]:
            continue
        line: dict[str, Any] = {
            "record": "student",
            **dict(zip(_STUDENT, values, strict=True)),
            "card": shown,
        }
        if key_name is None or len(shown["keys"]) == 1:
            model = msgspec.msgpack.decode(cast("bytes", data), type=StudentModel)
            line |= {"answers": list(model.answers), "questions": list(model.questions)}
        found.append(line)
    return found
