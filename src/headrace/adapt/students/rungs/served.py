"""Students that write in a server: loaded while they are judged or answer; no client can ask for them."""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from headrace.adapt.students.registry import Card, State, StudentRow
from headrace.adapt.students.rungs.names import adapter_name, student_model
from headrace.adapt.students.rungs.teaching import ADAPTER, WHOLE, students_folder
from headrace.adapt.students.rungs.writing import weights_digest
from headrace.errors import CorruptFile, HeadraceError
from headrace.storage.database import Database

LOG = logging.getLogger("headrace.adapt")
LIVE: tuple[State, ...] = ("trained", "shadow", "ready", "promoted")
AGAIN_S = 10.0
"""After which a student that could not be loaded is tried again."""
Load = Callable[[str, str, Path], Awaitable[object]]
"""Load the adapter at a path under a name for a model."""
Unload = Callable[[str, str], Awaitable[None]]
LoadModel = Callable[[str, Path], Awaitable[object]]
"""Load the model in a folder under a name that is in no list."""
UnloadModel = Callable[[str], Awaitable[None]]


class ServedAdapters:
    """Lives on the event loop."""

    def __init__(self, file: Path | None) -> None:
        self._folder = None if file is None else students_folder(file)
        self._loaded: dict[str, str] = {}
        self._failed: dict[str, float] = {}
        self._unwanted: set[str] = set()
        self.load: Load | None = None
        self.unload: Unload | None = None
        self.load_model: LoadModel | None = None
        self.unload_model: UnloadModel | None = None

    async def model_of(self, row: StudentRow) -> str:
        """The name by which a student is asked: it is loaded. Raises what prevents it."""
        if row.id not in self._loaded:
            assert self._folder is not None and self.load is not None
            folder = self._folder / row.id / (ADAPTER if row.model.base else WHOLE)
            await asyncio.to_thread(_check, folder, row)
            if row.model.base:
                await self.load(row.model.base, adapter_name(row.id), folder)
            else:
                assert self.load_model is not None
                await self.load_model(adapter_name(row.id), folder)
            self._loaded[row.id] = row.model.base
        return student_model(row.model.base, row.id)

    async def sync(self, wanted: Sequence[StudentRow]) -> None:
        """Load those of these students, and unload those that were not among them the last time either: a
        student may be asked before its state was read."""
        for row in wanted:
            now_s = time.monotonic()
            if now_s < self._failed.get(row.id, -math.inf) + AGAIN_S:
                continue
            try:
                await self.model_of(row)
            except Exception as error:  # the others are loaded all the same
                is_new, self._failed[row.id] = row.id not in self._failed, now_s
                if is_new:
                    LOG.warning("student %s is not loaded: %s", row.id, error)
        others = self._loaded.keys() - {row.id for row in wanted}
        gone, self._unwanted = others & self._unwanted, others
        for student in gone:
            base = self._loaded.pop(student)
            try:
                if base:
                    assert self.unload is not None
                    await self.unload(base, adapter_name(student))
                else:
                    assert self.unload_model is not None
                    await self.unload_model(adapter_name(student))
            except HeadraceError as error:
                LOG.info("student %s was unloaded already: %s", student, error.message)


def _check(folder: Path, row: StudentRow) -> None:
    """CorruptFile where the files are not those that were certified."""
    try:
        found = weights_digest(folder)
    except OSError as error:
        raise CorruptFile(f"the weights of student {row.id} cannot be read: {error.strerror}") from None
    if found != row.model.adapter:
        raise CorruptFile(
            f"the weights of student {row.id} are not those that were certified: train it again"
        )


def remove_adapters(database: Database) -> list[str]:
    """Delete weights of students that are gone, or will never answer; which they were."""
    folder = None if database.path is None else students_folder(database.path)
    if folder is None or not folder.is_dir():
        return []
    # In this order nothing is missed of a training that begins or ends meanwhile.
    there = list(folder.iterdir())
    kept = {str(id) for (id,) in database.query("SELECT student FROM trainings")}
    marks = ", ".join("?" for _ in LIVE)
    rows = database.query(f"SELECT id, card FROM students WHERE state IN ({marks})", LIVE)
    kept |= {
        str(id)
        for id, card in rows
        if msgspec.msgpack.decode(cast("bytes", card), type=Card).rung in ("lora", "distilled")
    }
    gone = [one for one in there if one.name not in kept]
    for one in gone:
        shutil.rmtree(one, ignore_errors=True)
    return [one.name for one in gone]
