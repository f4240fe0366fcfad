"""Finished parts of a long calibration in a folder, so that a run that was killed goes on."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Kept:
    """Named sets of arrays of one order, which `key` says; those of other orders are removed."""

    def __init__(self, work: Path, key: bytes) -> None:
        self._folder = work / hashlib.sha256(key).hexdigest()
        if work.is_dir():  # of another text or type: it is of no use any more
            for other in work.iterdir():
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays of a name; None where it has none, or a power cut has left half of them."""
        file = self._folder / _file_name(name)
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                return {field: np.array(stored[field]) for field in stored.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None

    def write(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Whole or not at all: not at all where a run for the same model has ended meanwhile and removed the
        folder, or has another order."""
        file = self._folder / _file_name(name)
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            with part.open("wb") as out:
                np.savez(out, **arrays)
            part.replace(file)
        except FileNotFoundError:
            return


def _file_name(name: str) -> str:
    """Names of tensors may be longer than those of files, or hold a slash."""
    return hashlib.sha256(name.encode()).hexdigest()[:32] + ".npz"
