"""Adapters of students in a server: loaded while they are judged or answer; no client can ask for them."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from headrace.adapt.registry import Card, State, StudentRow
from headrace.adapt.rungs.names import adapter_name
from headrace.adapt.rungs.teaching import ADAPTER, students_folder
from headrace.adapt.rungs.writing import adapter_digest
from headrace.errors import CorruptFile, HeadraceError
from headrace.inference.adapted_engine import adapted_name
from headrace.storage.database import Database

LOG = logging.getLogger("headrace.adapt")
LIVE: tuple[State, ...] = ("trained", "shadow", "ready", "promoted")
Load = Callable[[str, str, Path], Awaitable[object]]
"""Load the adapter at a path under a name for a model."""
Unload = Callable[[str, str], Awaitable[None]]


class ServedAdapters:
    """Lives on the event loop."""

    def __init__(self, file: Path | None) -> None:
        self._folder = None if file is None else students_folder(file)
        self._loaded: dict[str, str] = {}
        self._failed: set[str] = set()
        self._unwanted: set[str] = set()
        self.load: Load | None = None
        self.unload: Unload | None = None

    async def model_of(self, row: StudentRow) -> str:
        """The name of a student's base with its adapter, which is loaded. Raises what prevents it."""
        name = adapter_name(row.id)
        if row.id not in self._loaded:
            assert self._folder is not None and self.load is not None
            folder = self._folder / row.id / ADAPTER
            await asyncio.to_thread(_check, folder, row)
            await self.load(row.model.base, name, folder)
            self._loaded[row.id] = row.model.base
        return adapted_name(row.model.base, name)

    async def sync(self, wanted: Sequence[StudentRow]) -> None:
        """Load those of these students, and unload those that were not among them the last time either: a
        student may be asked before its state was read."""
        for row in wanted:
            try:
                await self.model_of(row)
            except Exception as error:  # the others are loaded all the same
                if row.id not in self._failed:
                    self._failed.add(row.id)
                    LOG.warning("the adapter of student %s is not loaded: %s", row.id, error)
        others = self._loaded.keys() - {row.id for row in wanted}
        gone, self._unwanted = others & self._unwanted, others
        for student in gone:
            base = self._loaded.pop(student)
            try:
                assert self.unload is not None
                await self.unload(base, adapter_name(student))
            except HeadraceError as error:
                LOG.info("the adapter of student %s was unloaded already: %s", student, error.message)


def _check(folder: Path, row: StudentRow) -> None:
    """CorruptFile where the files are not those that were certified."""
    try:
        found = adapter_digest(folder)
    except OSError as error:
        raise CorruptFile(f"the adapter of student {row.id} cannot be read: {error.strerror}") from None
    if found != row.model.adapter:
        raise CorruptFile(
            f"the adapter of student {row.id} is not the one that was certified: train it again"
        )


def remove_adapters(database: Database) -> list[str]:
    """Delete adapters of students that are gone, or will never answer; which they were."""
    folder = None if database.path is None else students_folder(database.path)
    if folder is None or not folder.is_dir():
        return []
    # In this order nothing is missed of a training that begins or ends meanwhile.
    there = list(folder.iterdir())
    kept = {str(id) for (id,) in database.query("SELECT student FROM trainings")}
    marks = ", ".join("?" for _ in LIVE)
    rows = database.query(f"SELECT id, card FROM students WHERE state IN ({marks})", LIVE)
    kept |= {
        str(id) for id, card in rows if msgspec.msgpack.decode(cast("bytes", card), type=Card).rung == "lora"
    }
    gone = [one for one in there if one.name not in kept]
    for one in gone:
        shutil.rmtree(one, ignore_errors=True)
    return [one.name for one in gone]
