"""The indexes of a folder and of databases, by name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from headrace.config.extras import extra_module
from headrace.config.names import nearest
from headrace.config.search_settings import INDEX_NAME, IndexStore, IndexStores, read_search
from headrace.config.settings import Settings
from headrace.errors import InvalidRequest
from headrace.search.index import Index, IndexMeta, IndexMissing, IndexUnreachable, RemoteIndex
from headrace.search.local_index import LocalIndex
from headrace.search.tables import locked

ASKED = "ask-"
"""How the names of indexes begin that `headrace ask --docs` makes, always on this machine."""
_HERE = IndexStore()


class Indexes:
    """Each index is a folder in a folder, or is in a database. Safe to share between threads."""

    def __init__(self, folder: Path, stores: IndexStores | None = None) -> None:
        """Raises ExtraMissing where `stores` name a database and the extra is not installed."""
        self._folder, self._stores = folder, stores or IndexStores()
        self._open: dict[str, LocalIndex] = {}
        remote = {
            one for one in (self._stores.everything, *self._stores.own.values()) if one.store is not None
        }
        self._pools = {one: _module(one).open_pool(one, self._place(one)) for one in remote}

    @property
    def may_have_any(self) -> bool:
        """Whether there may be an index for all, besides those of `headrace ask`. It asks no database."""
        return bool(self._pools) or any(not name.startswith(ASKED) for name in self._local_names(""))

    def names(self, owner: str = "") -> list[str]:
        """Those of an owner; "" are those for all."""
        found = self._local_names(owner)
        for store, pool in self._pools.items():
            found += [name for name in _module(store).names_of(pool, owner) if self._store_of(name) == store]
        return sorted(found)

    def find(self, name: str, owner: str = "") -> Index:
        """The index of that name; IndexMissing says how to make one."""
        index = self._at(checked_name(name))
        if not index.exists or index.meta().owner != owner:
            raise IndexMissing(
                f"there is no index {name!r}{self._nearest(name, owner)};"
                f" `headrace ingest PATH --into {name}` makes one",
                param="datasets",
            )
        return index

    def has(self, name: str, owner: str = "") -> bool:
        """Whether an owner has an index of that name."""
        index = self._at(checked_name(name))
        return index.exists and index.meta().owner == owner

    def find_all(self, names: Sequence[str] | None, owner: str = "") -> list[Index]:
        """The indexes of these names, each once; all of the owner's where none are named, but those that
        `headrace ask` has made for itself. IndexMissing where one is not there, or there is none."""
        if names is None:
            wanted = [name for name in self.names(owner) if not name.startswith(ASKED)]
        else:
            wanted = list(dict.fromkeys(names))
        return [self.find(name, owner) for name in wanted or ["docs"]]

    def find_or_make(self, name: str, meta: IndexMeta) -> Index:
        """The index of that name, made where there is none. InvalidRequest where the one that is there was
        made by another model, or in other chunks."""
        index = self._at(checked_name(name))
        if not index.exists:
            if isinstance(index, LocalIndex):
                return LocalIndex.make(index.folder, meta)
            index.make(meta)
            return index
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
        if not isinstance(index, LocalIndex):
            index.drop()
        elif index.exists:
            with locked(index.folder):
                shutil.rmtree(index.folder)
        self._open.pop(name, None)

    def close(self) -> None:
        """Close connections to databases."""
        for pool in self._pools.values():
            pool.close()

    def _local_names(self, owner: str) -> list[str]:
        if not self._folder.is_dir():
            return []
        names = [path.name for path in sorted(self._folder.iterdir()) if INDEX_NAME.fullmatch(path.name)]
        found = [self._local(name) for name in names if self._store_of(name).store is None]
        return [one.name for one in found if one.exists and one.meta().owner == owner]

    def _nearest(self, name: str, owner: str) -> str:
        try:
            names = self.names(owner)
        except IndexUnreachable:
            return ""
        return nearest(name, names).rstrip("?") if names else ": there is none"

    def _store_of(self, name: str) -> IndexStore:
        default = _HERE if name.startswith(ASKED) else self._stores.everything
        return self._stores.own.get(name, default)

    def _place(self, store: IndexStore) -> str:
        """The table of the settings that names a store first."""
        if store == self._stores.everything:
            return "search"
        return f"search.indexes.{next(name for name, one in self._stores.own.items() if one == store)}"

    def _at(self, name: str) -> LocalIndex | RemoteIndex:
        store = self._store_of(name)
        if store.store is None:
            return self._local(name)
        return _module(store).index_of(self._pools[store], name)

    def _local(self, name: str) -> LocalIndex:
        found = self._open.get(name)
        if found is None:
            found = LocalIndex(self._folder / name)
            if found.exists:  # names that clients make up are not kept
                found = self._open.setdefault(name, found)
        return found


def _module(store: IndexStore) -> ModuleType:
    """What has the indexes of a store that is not here: `open_pool`, `index_of` and `names_of`."""
    if store.kind == "qdrant":
        return extra_module("qdrant", "headrace.search.qdrant.qdrant_index", "qdrant_client")
    return extra_module("pgvector", "headrace.search.postgres.postgres_index", "psycopg")


def indexes_of(settings: Settings) -> Indexes:
    """The indexes beside the store of these settings, and those in databases that they name."""
    return Indexes(settings.store_file.parent / "search", read_search(settings.search))


def checked_name(name: str) -> str:
    """A name of an index; InvalidRequest for anything else."""
    if not INDEX_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name of an index: it has up to 63 letters, digits, - and _, and begins with"
            " a letter or _",
            param="datasets",
        )
    return name
