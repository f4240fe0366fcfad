"""Trainings in a process of their own: last in priority, within its memory and hours, and after live traffic.

Run as `python -m headrace.adapt.students.training_process FILE TASK`, with the settings on standard input, it
prints what it has made as JSON. Arguments can be read by everybody on the machine; settings have secrets.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.adapt.schema import ADAPT_MIGRATIONS
from headrace.adapt.students.checkpoints import wait_for_traffic
from headrace.adapt.students.registry import Card
from headrace.adapt.students.rungs.folders import ModelFolders
from headrace.adapt.students.student import Rung
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import HeadraceError, InvalidRequest
from headrace.isolation.child import KEPT_VARIABLES
from headrace.isolation.limits import ProcessLimits, apply
from headrace.isolation.parent import end_with_reader
from headrace.storage.database import Database

NICE = 19
WAITING_S = 1.0
MODULE = "headrace.adapt.students.training_process"


class TrainingInput(Struct, frozen=True):
    """What a training is told: settings, the models that students are made of, and the only rung to try."""

    settings: AdaptSettings
    folders: ModelFolders
    rung: Rung | None = None


class TrainedStudent(Struct, frozen=True, kw_only=True):
    """What a training made; `error` says why it made nothing."""

    student: str = ""
    card: Card | None = None
    error: str = ""


class TrainingEnded(HeadraceError):
    """The process of a training was ended from outside, or took more than it may have."""

    remedy = "Train the task again: it goes on from its last checkpoint."


class TrainingProcess:
    """Starts the process, and waits for it; `stop` ends it from another thread."""

    def __init__(
        self,
        file: Path,
        task: str,
        settings: AdaptSettings,
        folders: ModelFolders | None = None,
        rung: Rung | None = None,
    ) -> None:
        self._task = task
        # -P: import nothing from the current directory.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(file), task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
            | {"OPENBLAS_NUM_THREADS": str(settings.train_cores)},
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as given:
            given.write(msgspec.json.encode(TrainingInput(settings, folders or ModelFolders(), rung)))
        self._process.stdin = None  # `communicate` has nothing to send

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def result(self, waiting: Callable[[], None] | None = None) -> tuple[str, Card]:
        """The student; InvalidRequest where none can be made, TrainingEnded where it was ended. `waiting` is
        called about every second until then."""
        said = self._said(waiting)
        code = self._process.returncode
        try:
            found = msgspec.json.decode(said, type=TrainedStudent)
        except msgspec.DecodeError:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise TrainingEnded(
                f"the training of task {self._task} was ended ({how}): train it again, it goes on from its "
                "last checkpoint; adapt.train_memory and adapt.train_hours bound it"
            ) from None
        if found.card is None:
            raise InvalidRequest(found.error, param="task")
        return found.student, found.card

    def _said(self, waiting: Callable[[], None] | None) -> bytes:
        while True:
            try:
                return self._process.communicate(timeout=None if waiting is None else WAITING_S)[0]
            except subprocess.TimeoutExpired:
                assert waiting is not None
                waiting()

    def stop(self) -> None:
        """End it; what it has done stays."""
        with suppress(ProcessLookupError):
            self._process.kill()


def main(arguments: Sequence[str]) -> None:
    """In the process."""
    os.nice(NICE)
    end_with_reader()
    file, task = Path(arguments[0]), arguments[1]
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=TrainingInput)
    settings = given.settings
    apply(ProcessLimits(settings.train_hours * 3600, settings.train_memory))
    with file.with_suffix(".training").open("a") as lock:
        database = Database(file, ADAPT_MIGRATIONS)
        try:
            found = _made(lock.fileno(), database, task, given)
        except HeadraceError as error:
            found = TrainedStudent(error=error.message)
        except OSError as error:
            found = TrainedStudent(error=f"the training could not write its files: {error.strerror}")
        except MemoryError:
            most = settings.train_memory
            found = TrainedStudent(
                error=f"the training takes more than adapt.train_memory ({most:,} bytes): give it more"
            )
        finally:
            database.close()
    sys.stdout.write(msgspec.json.encode(found).decode())


def _made(lock: int, database: Database, task: str, given: TrainingInput) -> TrainedStudent:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it, however this ends
    except OSError:
        raise InvalidRequest("another training runs: wait for its end", param="task") from None
    store = ExampleStore(database)
    wait_for_traffic(database)
    name, card = train(
        *(store, task, given.settings, None),
        wait=lambda: wait_for_traffic(database),
        folders=given.folders,
        rung=given.rung,
    )
    return TrainedStudent(student=name, card=card)


if __name__ == "__main__":
    main(sys.argv[1:])
