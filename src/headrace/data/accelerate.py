"""Local copies of datasets: files of DuckDB, replaced as a whole so that readers keep what they have open."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.data.catalogue import Catalogue, Dataset
from headrace.data.job import Copy, SqlAnswer, View
from headrace.errors import HeadraceError, InvalidRequest

Run = Callable[[Copy, set[str]], SqlAnswer]


class Copies:
    """Makes the copies of a catalogue's datasets, one at a time."""

    def __init__(self, catalogue: Catalogue, run: Run) -> None:
        self._catalogue, self._run = catalogue, run
        self._lock = threading.Lock()
        self.errors: dict[str, str] = {}
        """Why the last try to make a dataset's copy failed, by its name."""

    def make(self, views: Sequence[View]) -> None:
        """Make the copies of `views` that are not there yet, and those anew whose time has come. One that
        cannot be made anew stays as it is, and `errors` says why."""
        for dataset in self._catalogue:
            if dataset.copy is None or all(view.name != dataset.name for view in views):
                continue
            there = dataset.copy.exists()
            if there and not _due(dataset, dataset.copy):
                continue
            with suppress(HeadraceError):
                self.refresh(dataset)

    def refresh(self, dataset: Dataset) -> int:
        """Make the copy of a dataset anew; returns its rows. Until that is done the old one is read."""
        if dataset.copy is None or dataset.acceleration is None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} has no local copy: set accelerate", param="dataset"
            )
        with self._lock:
            dataset.copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = dataset.copy.with_name(f"{dataset.copy.name}.{os.getpid()}.part")
            try:
                rows = self._make(dataset, part)
                part.replace(dataset.copy)
            except HeadraceError as error:
                self.errors[dataset.name] = error.message
                raise
            finally:
                for left in (part, part.with_name(part.name + ".wal")):
                    left.unlink(missing_ok=True)
            self.errors.pop(dataset.name, None)
            return rows

    def _make(self, dataset: Dataset, part: Path) -> int:
        assert dataset.acceleration is not None and dataset.copy is not None
        later_than = dataset.acceleration.time_column
        if later_than is not None and dataset.copy.exists():
            shutil.copyfile(dataset.copy, part)
        else:
            later_than = None
        view, secrets = self._catalogue.view(dataset, None, ruled=False, original=True)
        return self._run(Copy(view=view, path=str(part), later_than=later_than), secrets).rows


def _due(dataset: Dataset, copy: Path) -> bool:
    every = dataset.acceleration.every_s if dataset.acceleration is not None else 0.0
    return every > 0 and time.time() - copy.stat().st_mtime >= every
