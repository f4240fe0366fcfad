"""The indexes of a folder, by name."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.config.names import nearest
from headrace.config.settings import Settings
from headrace.errors import InvalidRequest
from headrace.search.index import IndexMeta, IndexMissing
from headrace.search.local_index import LocalIndex
from headrace.search.tables import locked

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


ASKED = "ask-"
"""How the names of indexes begin that `headrace ask --docs` makes."""


class Indexes:
    """Each index is a folder in a folder. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, LocalIndex] = {}

    def names(self, owner: str = "") -> list[str]:
        """Those of an owner; "" are those for all."""
        if not self._folder.is_dir():
            return []
        found = (self._at(path.name) for path in sorted(self._folder.iterdir()) if _NAME.fullmatch(path.name))
        return [one.folder.name for one in found if one.exists and one.meta().owner == owner]

    def find(self, name: str, owner: str = "") -> LocalIndex:
        """The index of that name; IndexMissing says how to make one."""
        index = self._at(checked_name(name))
        if not index.exists or index.meta().owner != owner:
            names = self.names(owner)
            known = nearest(name, names) if names else ": there is none"
            raise IndexMissing(
                f"there is no index {name!r}{known.rstrip('?')}; `headrace ingest PATH --into {name}` makes"
                " one",
                param="datasets",
            )
        return index

    def find_all(self, names: Sequence[str] | None, owner: str = "") -> list[LocalIndex]:
        """The indexes of these names, each once; all of the owner's where none are named, but those that
        `headrace ask` has made for itself. IndexMissing where one is not there, or there is none."""
        if names is None:
            wanted = [name for name in self.names(owner) if not name.startswith(ASKED)]
        else:
            wanted = list(dict.fromkeys(names))
        return [self.find(name, owner) for name in wanted or ["docs"]]

    def find_or_make(self, name: str, meta: IndexMeta) -> LocalIndex:
        """The index of that name, made where there is none. InvalidRequest where the one that is there was
        made by another model, or in other chunks."""
        index = self._at(checked_name(name))
        if not index.exists:
            return LocalIndex.make(index.folder, meta)
        found = index.meta()
        if (found.model, found.chunk_tokens, found.owner) != (meta.model, meta.chunk_tokens, meta.owner):
            raise InvalidRequest(
                f"the index {name} was made by the model {found.model} in chunks of {found.chunk_tokens:,}"
                f" tokens, not by {meta.model} in chunks of {meta.chunk_tokens:,}: use these or another name",
                param="model",
            )
        return index

    def delete(self, name: str) -> None:
        """Delete an index; IndexBusy while it is written."""
        index = self._at(checked_name(name))
        if index.exists:
            with locked(index.folder):
                shutil.rmtree(index.folder)
        self._open.pop(name, None)

    def _at(self, name: str) -> LocalIndex:
        found = self._open.get(name)
        if found is None:
            found = LocalIndex(self._folder / name)
            if found.exists:  # names that clients make up are not kept
                found = self._open.setdefault(name, found)
        return found


def indexes_of(settings: Settings) -> Indexes:
    """The indexes beside the store of these settings."""
    return Indexes(settings.store_file.parent / "search")


def checked_name(name: str) -> str:
    """A name of an index; InvalidRequest for anything else."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name of an index: it has up to 63 letters, digits, - and _, and begins with"
            " a letter or _",
            param="datasets",
        )
    return name
