"""How far the training of a task has come, kept so that it goes on after its process was killed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import numpy as np
from msgspec import Struct

from headrace.adapt.students.ladder import Progress, RungResult, Split, TaskExample, data_digest
from headrace.adapt.students.student import Rung
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import StoreBusy
from headrace.storage.database import Database
from headrace.tasks.few_shot import FitState

EVERY_S = 2.0
"""Between two checkpoints of a fit: a kill costs so much."""
BUSY_S = 1.0
"""Live traffic that was seen so lately still waits."""
PAUSE_S = 0.2
_RUNGS = list[RungResult]


class StaleTraining(Exception):
    """What is kept was begun on other examples or settings."""


class KeptTraining(Struct, frozen=True, kw_only=True):
    """A training that has not ended. `data` says on which examples and settings it was begun."""

    student: str
    last_example: int
    data: str
    stage: str
    started_s: float
    rungs: list[RungResult]
    steps: int
    weights: bytes | None


class RunningTraining(Struct, frozen=True, kw_only=True):
    """A training that runs or was interrupted: how far it is, and when that was."""

    task: str
    student: str
    stage: str
    started_s: float
    updated_s: float


def running_trainings(database: Database) -> list[RunningTraining]:
    """All of them."""
    if not database.exists:
        return []
    names = RunningTraining.__struct_fields__
    rows = database.query(f"SELECT {', '.join(names)} FROM trainings ORDER BY started_s")
    return [RunningTraining(**dict(zip(names, row, strict=True))) for row in rows]  # type: ignore[arg-type]


def kept_training(database: Database, task: str) -> KeptTraining | None:
    """The training of a task that was interrupted, or runs."""
    rows = database.query(
        "SELECT student, last_example, data, stage, started_s, rungs, steps, weights FROM trainings "
        "WHERE task = ?",
        (task,),
    )
    if not rows:
        return None
    values = dict(zip(KeptTraining.__struct_fields__, rows[0], strict=True))
    values["rungs"] = msgspec.msgpack.decode(values["rungs"], type=_RUNGS)  # type: ignore[arg-type]
    return KeptTraining(**values)  # type: ignore[arg-type]


def drop_training(database: Database, task: str) -> None:
    """It has ended."""
    database.execute("DELETE FROM trainings WHERE task = ?", (task,))


def note_live_traffic(database: Database) -> None:
    """Requests of clients are under way: trainings wait."""
    database.execute("INSERT OR REPLACE INTO live_traffic VALUES (1, ?)", (time.time(),))


def is_training(database: Database) -> bool:
    """Whether a training has begun and not ended."""
    return database.exists and bool(database.query("SELECT 1 FROM trainings LIMIT 1"))


def wait_for_traffic(database: Database) -> None:
    """Until no request of a client was under way lately."""
    while has_traffic(database):
        time.sleep(PAUSE_S)


def has_traffic(database: Database) -> bool:
    """Whether a request of a client was under way lately."""
    [(last,)] = database.query("SELECT coalesce(max(at_s), 0) FROM live_traffic")
    return 0 <= time.time() - float(last or 0) < BUSY_S


def note_stage(database: Database, task: str, stage: str) -> None:
    """How far a training is by now."""
    with suppress(StoreBusy):  # such as while the file is written anew
        database.execute(
            "UPDATE trainings SET stage = ?, updated_s = ? WHERE task = ?", (stage, time.time(), task)
        )


def goes_on(database: Database, task: str, student: str) -> bool:
    """Whether the training of a student has not been deleted; it is noted that it is under way."""
    try:
        sql = "UPDATE trainings SET updated_s = ? WHERE task = ? AND student = ?"
        return database.execute(sql, (time.time(), task, student)) > 0
    except StoreBusy:  # such as while the file is written anew
        return True


class Checkpoints(Progress):
    """Writes what is done, and goes on from `kept`; StaleTraining where that is of other examples."""

    def __init__(
        self,
        database: Database,
        task: str,
        student: str,
        examples: Sequence[TaskExample],
        parts: Split,
        settings: AdaptSettings,
        kept: KeptTraining | None,
        wait: Callable[[], None],
        rung: Rung | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._task, self._wait, self._clock = database, task, wait, clock
        data = _digest(examples, settings, rung)
        self.rungs, self.state = [], None
        if kept is not None:
            if kept.data != data:
                raise StaleTraining
            self.rungs, self.state = kept.rungs, _state(kept, parts)
        else:
            now_s = time.time()
            database.execute(
                "INSERT OR REPLACE INTO trainings VALUES (?, ?, ?, ?, 'exact', ?, ?, ?, 0, NULL)",
                (
                    *(task, student, now_s, now_s, examples[-1].id if examples else 0, data),
                    msgspec.msgpack.encode(self.rungs),
                ),
            )
        self._kept_s = clock()

    def done(self, rung: RungResult) -> None:
        """See `Progress.done`."""
        self.rungs, self.state = [*self.rungs, rung], None
        self._database.execute(
            "UPDATE trainings SET rungs = ?, steps = 0, weights = NULL, stage = ?, updated_s = ? "
            "WHERE task = ?",
            (msgspec.msgpack.encode(self.rungs), f"{rung.rung} done", time.time(), self._task),
        )
        self._wait()

    def step(self, state: FitState) -> None:
        """See `Progress.step`."""
        self._wait()
        if self._clock() - self._kept_s < EVERY_S:
            return
        self._database.execute(
            "UPDATE trainings SET steps = ?, weights = ?, stage = ?, updated_s = ? WHERE task = ?",
            (
                state.steps,
                np.stack([state.weights, state.last]).astype("<f8").tobytes(),
                *(f"step {state.steps}", time.time(), self._task),
            ),
        )
        self._kept_s = self._clock()


def _state(kept: KeptTraining, parts: Split) -> FitState | None:
    if kept.weights is None:
        return None
    labels, size = len({one.answer for one in parts.lessons}), len(parts.lessons[0].vector) + 1
    both = np.frombuffer(kept.weights, "<f8").reshape(2, labels, size)
    return FitState(kept.steps, both[0].copy(), both[1].copy())


def _digest(examples: Sequence[TaskExample], settings: AdaptSettings, rung: Rung | None) -> str:
    """Of examples, answers and settings: what makes a student another one."""
    known = (
        settings.margin,
        settings.alpha,
        settings.encoder,
        settings.base,
        settings.student,
        rung,
        settings.judge,
    )
    text = f"{data_digest(examples)} {known}"
    return hashlib.sha256(text.encode()).hexdigest()
