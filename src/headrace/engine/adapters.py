"""The adapters of one engine: their slots in the executor, and which of them requests still use."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from headrace.errors import CorruptFile, EngineStopped, ModelNotFound, UnsupportedModel
from headrace.executors.adapters import MAX_ADAPTERS, Adapter
from headrace.executors.executor import Executor


class AdapterInfo(Struct, frozen=True):
    """A loaded adapter. Requests name it by the digest of its content."""

    digest: str
    rank: int
    nbytes: int


class ReadAdapter(Protocol):
    """An adapter as it was read, for the engine's program."""

    @property
    def adapter(self) -> Adapter: ...
    @property
    def digest(self) -> str: ...
    @property
    def rank(self) -> int: ...


AdapterReader = Callable[[Path], ReadAdapter]


class AdapterSlots:
    """Thread-safe. An adapter that is unloaded takes no new requests; its slot is free when the last request
    that uses it has ended."""

    def __init__(
        self, executor: Executor, read: AdapterReader | None, in_use: Callable[[], Collection[str]]
    ) -> None:
        """`in_use` gives the digests that requests in the engine name."""
        self._executor = weakref.ref(executor)  # the loop alone keeps it in memory
        self._read, self._in_use = read, in_use
        self._lock = threading.RLock()
        self._slots: dict[str, int] = {}
        self._infos: dict[str, AdapterInfo] = {}
        self._retiring: set[str] = set()

    def load(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """Read an adapter and put it into a slot; nothing where it is loaded already. ModelNotFound,
        CorruptFile, UnsupportedModel; CorruptFile too where its digest is not the `expected` one."""
        executor = self._executor()
        if executor is None:
            raise EngineStopped("the engine was shut down")
        if self._read is None:
            raise UnsupportedModel("this model cannot have adapters: only models that generate text can")
        found = self._read(path)
        if expected not in (None, found.digest):
            raise CorruptFile(
                f"the adapter {path.name} has changed on the disk since it was loaded: load it again"
            )
        with self._lock:
            self._retiring.discard(found.digest)
            if found.digest not in self._slots:
                taken = set(self._slots.values())
                slot = next((one for one in range(MAX_ADAPTERS) if one not in taken), None)
                if slot is None:
                    raise UnsupportedModel(f"{MAX_ADAPTERS:,} adapters are loaded: unload one first")
                executor.set_adapter(slot, found.adapter)
                nbytes = found.adapter.nbytes(executor.adapter_bytes)
                self._slots[found.digest] = slot
                self._infos[found.digest] = AdapterInfo(found.digest, found.rank, nbytes)
            return self._infos[found.digest]

    def unload(self, digest: str) -> None:
        """Take no more requests for it; nothing where it is not loaded."""
        with self._lock:
            if digest in self._slots:
                self._retiring.add(digest)
        self.free()

    @property
    def retiring(self) -> bool:
        """Whether some wait for their last request."""
        return bool(self._retiring)

    def free(self) -> None:
        """Empty the slots of unloaded adapters that no request uses."""
        with self._lock:
            executor, used = self._executor(), self._in_use()
            for digest in [one for one in self._retiring if one not in used]:
                self._retiring.discard(digest)
                del self._infos[digest]
                slot = self._slots.pop(digest)
                if executor is not None:
                    executor.set_adapter(slot, None)

    @contextmanager
    def using(self, digest: str) -> Generator[int]:
        """The slot of an adapter, -1 for none ("" as the digest), while a request is accepted that will use
        it. ModelNotFound where it is not loaded."""
        if not digest:
            yield -1
            return
        with self._lock:
            if digest not in self._slots or digest in self._retiring:
                raise ModelNotFound("the adapter was unloaded: load it again", param="model")
            yield self._slots[digest]
