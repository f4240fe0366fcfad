"""The weights of a student that writes, made by the process of fine-tuning jobs: it goes on if killed."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.fine_tuning.order import MODULE, AdapterNote, AdapterOrder, AdapterPlan
from headrace.adapt.students.ladder import TaskExample
from headrace.adapt.students.rungs.writing import conversation_of
from headrace.errors import InvalidRequest
from headrace.isolation.child import KEPT_VARIABLES

BATCH = 8
STEPS = 200
"""At least, where these are no more than ten epochs: of few lessons a few steps teach nothing."""
RATE = 2e-3
LONG = 3000
"""Bytes of a lesson, which has no more tokens."""
WHOLE_EPOCHS = 3
"""Of all weights: `nano` had kept 7 of 8 canaries among 300 lessons after nine, and none after three."""
RANK, SMALL_RANK = 8, 4
"""Of adapters: the small one is for a task of which the other has kept canaries (decision 0126)."""
SMALL = "small"
"""A file that says in a student's folder that it has the small rank."""
LOOK_S = 0.3
MIN_EXAMPLES = 10
"""Answers of a teacher whose probabilities are worth computing; a file of fewer is refused."""
ADAPTER: Final = "adapter"
WHOLE: Final = "model"
Kind = Literal["adapter", "model"]
"""What is learned: an adapter of the base, or all weights."""


class AdapterPlace(Struct, frozen=True, kw_only=True):
    """A student's weights: the base by the name that requests have for it, and its folder; where the student
    is kept; processor cores and hours that its training may take. All weights may learn the probabilities of
    a model of this machine that has answered, `teacher`, whose folder is given, too."""

    base: str
    weights: Path
    folder: Path
    cores: int
    hours: float
    kind: Kind = ADAPTER
    teacher: str | None = None
    teacher_weights: Path | None = None
    rank: int = RANK

    @property
    def made(self) -> Path:
        """The folder of PEFT, or of a model, as soon as it is made."""
        return self.folder / self.kind


def begun(place: AdapterPlace) -> AdapterPlace:
    """The place of a training that an earlier process may have begun."""
    is_small = place.kind == ADAPTER and (place.folder / SMALL).is_file()
    return replace(place, rank=SMALL_RANK) if is_small else place


def smaller(place: AdapterPlace, used_s: float) -> AdapterPlace | None:
    """The place of a smaller adapter, after another has kept what it should not have: that one is deleted.
    None where there is none. Of its hours `used_s` are gone."""
    if place.kind != ADAPTER or place.rank == SMALL_RANK:
        return None
    left = place.folder / "left"
    try:
        place.made.rename(left)  # from here on a killed training begins the larger one anew
        (place.folder / SMALL).touch()
        shutil.rmtree(left)
    except FileNotFoundError:
        raise InvalidRequest("its weights were deleted while they were made", param="task") from None
    return replace(place, rank=SMALL_RANK, hours=max(place.hours - used_s / 3600, 0.01))


def bytes_of(folder: Path) -> int:
    """Of its files."""
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def students_folder(file: Path) -> Path:
    """Where students of the database in `file` have their adapters."""
    return file.with_suffix(".students")


def plan_of(lessons: int, longest: int) -> AdapterPlan:
    """How so many lessons are learned, the longest of which has so many bytes: long ones are batched by
    their tokens."""
    epochs = min(10, max(2, -(-STEPS * BATCH // lessons)))
    return AdapterPlan(epochs=epochs, batch_size=BATCH if longest <= LONG else None, rate=RATE)


def teach(
    lessons: Sequence[TaskExample],
    place: AdapterPlace,
    has_traffic: Callable[[], bool],
    noted: Callable[[AdapterNote], None],
) -> None:
    """Train the weights of a student. InvalidRequest says why there are none.

    While `has_traffic` says that clients wait, so does the training."""
    data, made = place.folder / "training.jsonl", place.folder / "made"
    if place.made.is_dir():  # its process was killed afterwards
        _cleaned(place)
        return
    place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = [one for one in lessons if place.teacher is not None and is_of_teacher(one, place.teacher)]
    lines, theirs = [_line(one) for one in lessons], [_line(one) for one in own]
    data.write_bytes(b"\n".join(lines) + b"\n")
    said = place.folder / "said.jsonl"
    if has_teacher := len(theirs) >= MIN_EXAMPLES:
        said.write_bytes(b"\n".join(theirs) + b"\n")
    shutil.rmtree(made, ignore_errors=True)
    plan = replace(plan_of(len(lines), max(map(len, lines))), rank=place.rank)
    if place.kind == WHOLE:
        plan = replace(plan, epochs=min(plan.epochs, WHOLE_EPOCHS))
    order = AdapterOrder(
        base=str(place.weights),
        training=str(data),
        validation=None,
        out=str(made),
        work=str(place.folder / f"work-{place.kind}{'' if place.rank == RANK else f'-{place.rank}'}"),
        plan=plan,
        threads=place.cores,
        hours=place.hours,
        pause=str(place.folder / "pause"),
        skips_unfit=True,
        whole=place.kind == WHOLE,
        teacher=str(place.teacher_weights) if has_teacher else None,
        said=str(said) if has_teacher else None,
    )
    last = _computed(order, has_traffic, noted)
    if last is None:
        raise InvalidRequest(
            "its training was ended, such as for want of memory or time: adapt.train_memory and "
            "adapt.train_hours bound it",
            param="task",
        )
    if last.kind == "failed":
        raise InvalidRequest(last.message, param="task")
    try:
        made.rename(place.made)
        _cleaned(place)
    except FileNotFoundError:
        raise InvalidRequest("its weights were deleted while they were made", param="task") from None


def is_of_teacher(example: TaskExample, teacher: str) -> bool:
    """Whether that model has given the answer that is learned: a correction is a person's."""
    return example.target == teacher and example.answer == example.said


def _cleaned(place: AdapterPlace) -> None:
    """Without all but weights that are done: what users have said, and checkpoints."""
    for one in place.folder.iterdir():
        if one.name not in (ADAPTER, WHOLE):
            shutil.rmtree(one) if one.is_dir() else one.unlink()


def keep_only(folder: Path, kind: Kind) -> None:
    """Delete a student's other weights, which were not chosen."""
    other = folder / (WHOLE if kind == ADAPTER else ADAPTER)
    shutil.rmtree(other, ignore_errors=True)


def _line(example: TaskExample) -> bytes:
    asked = conversation_of(example) or ()
    said = [{"role": one.role, "content": one.content, "weight": 0} for one in asked]
    for one in said:
        if one["role"] != "assistant":
            del one["weight"]
    return msgspec.json.encode({"messages": [*said, {"role": "assistant", "content": example.answer}]})


def _computed(
    order: AdapterOrder, has_traffic: Callable[[], bool], noted: Callable[[AdapterNote], None]
) -> AdapterNote | None:
    """The last word of the process, which ends with this one; None where it was ended without one."""
    variables = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE],  # -P: import nothing from the current directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=variables,
        bufsize=0,
    )
    assert process.stdin is not None and process.stdout is not None and order.pause is not None
    last, rest = None, b""
    try:
        with suppress(BrokenPipeError), process.stdin as given:
            given.write(msgspec.json.encode(order))
        while True:
            if has_traffic():
                with suppress(OSError):  # its folder was deleted: it ends with its next look
                    Path(order.pause).touch()
            if not select.select([process.stdout], [], [], LOOK_S)[0]:
                continue
            said = process.stdout.read(1 << 16)
            if not said:
                return last
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                note = msgspec.json.decode(line, type=AdapterNote)
                last = note if note.kind in ("made", "failed") else last
                noted(note)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
