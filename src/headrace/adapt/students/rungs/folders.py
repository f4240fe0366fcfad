"""The models of this machine that students are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from headrace.adapt.students.student import Rung
from headrace.adapt.traffic.examples import ExampleStore
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import HeadraceError


class ModelFolders(Struct, frozen=True, kw_only=True):
    """Folders of the tagger, the base of adapters, the model all of whose weights learn, and the incumbent,
    with its name; None where there is none, `unfit` says for a rung why."""

    tagger: str | None = None
    base: str | None = None
    student: str | None = None
    teacher: str | None = None
    teacher_weights: str | None = None
    unfit: dict[Rung, str] = {}


def folders_of(
    store: ExampleStore, task: str, settings: AdaptSettings, weights_of: Callable[[str], Path]
) -> ModelFolders:
    """Those that the settings name, and what answers a task today; `weights_of` raises where a model of this
    machine has no folder that can be learned from."""
    unfit: dict[Rung, str] = {}
    found: dict[str, str] = {}
    whole = settings.student or settings.base
    wanted: list[tuple[Rung, str | None, str]] = [
        ("tagger", settings.tagger, "tagger"),
        ("lora", settings.base, "base"),
        ("distilled", whole, "student"),
    ]
    for rung, name, field in wanted:
        if name is None:
            continue
        try:
            found[field] = str(weights_of(name))
        except HeadraceError as error:  # other students need none
            unfit[rung] = error.message
    teacher = incumbent_target(store, task)
    try:
        theirs = None if teacher is None or whole is None else str(weights_of(teacher))
    except HeadraceError:  # a remote model: its answers are all that is known
        theirs = None
    return ModelFolders(
        tagger=found.get("tagger"),
        base=found.get("base"),
        student=found.get("student"),
        teacher=teacher if theirs else None,
        teacher_weights=theirs,
        unfit=unfit,
    )


def incumbent_target(store: ExampleStore, task: str) -> str | None:
    """What answers most requests of a task."""
    rows = store.database.query(
        "SELECT target, count(*) FROM examples WHERE task = ? AND target NOT LIKE 'adapt/%' "
        "GROUP BY target ORDER BY 2 DESC LIMIT 1",
        (task,),
    )
    return str(rows[0][0]) if rows else None
