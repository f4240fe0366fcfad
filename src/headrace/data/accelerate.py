"""Local copies of datasets: files of DuckDB, replaced as a whole so that readers keep what they have open."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.data.catalogue import Catalogue, Dataset, names
from headrace.data.job import Copy, SqlAnswer, View
from headrace.errors import HeadraceError, InvalidRequest

Run = Callable[[Copy, set[str]], SqlAnswer]


RETRY_S = 30.0
"""After a copy could not be made; meanwhile statements do not wait for its source."""


class Copies:
    """Makes the copies of a catalogue's datasets, each by one thread at a time."""

    def __init__(self, catalogue: Catalogue, run: Run) -> None:
        self._catalogue, self._run = catalogue, run
        self._locks = {dataset.name: threading.Lock() for dataset in catalogue}
        self._failed_s: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        """Why the last try to make a dataset's copy failed, by its name."""

    def make(self, views: Sequence[View], sql: str) -> None:
        """Make the copies of those `views` that are not there yet and whose names `sql` has, and those anew
        whose time has come. One that cannot be made anew stays as it is, and `errors` says why."""
        seen = {view.name for view in views}
        for dataset in self._catalogue:
            if dataset.copy is None or dataset.name not in seen or not names(sql, dataset.name):
                continue
            with self._locks[dataset.name], suppress(HeadraceError):
                if _due(dataset, dataset.copy) and not self._has_just_failed(dataset):
                    self._refresh(dataset)

    def _has_just_failed(self, dataset: Dataset) -> bool:
        failed_s = self._failed_s.get(dataset.name)
        return failed_s is not None and time.monotonic() - failed_s < RETRY_S

    def refresh(self, dataset: Dataset) -> int:
        """Make the copy of a dataset anew; returns its rows. Until that is done the old one is read."""
        if dataset.copy is None or dataset.acceleration is None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} has no local copy: set accelerate", param="dataset"
            )
        with self._locks[dataset.name]:
            return self._refresh(dataset)

    def _refresh(self, dataset: Dataset) -> int:
        assert dataset.copy is not None
        dataset.copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = dataset.copy.with_name(f"{dataset.copy.name}.{os.getpid()}.part")
        try:
            rows = self._make(dataset, part)
            part.replace(dataset.copy)
        except HeadraceError as error:
            self.errors[dataset.name], self._failed_s[dataset.name] = error.message, time.monotonic()
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
    if not copy.exists():
        return True
    every = dataset.acceleration.every_s if dataset.acceleration is not None else 0.0
    return every > 0 and time.time() - copy.stat().st_mtime >= every
