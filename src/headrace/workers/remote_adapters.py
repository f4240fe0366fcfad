"""The adapters of an engine in a worker process: what it has loaded, to be loaded again after its death."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path

from headrace.engine.adapters import AdapterInfo
from headrace.errors import EngineStopped, HeadraceError, ModelNotFound
from headrace.workers.protocol import AdapterResult, LoadAdapter, UnloadAdapter

LOG = logging.getLogger("headrace.workers")

Put = Callable[[LoadAdapter | UnloadAdapter], None]


class RemoteAdapters:
    """Thread-safe. Worker processes may die: `begin` tells each new one what the last one had."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._put: Put | None = None
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[Future[AdapterInfo], Path]] = {}
        self._paths: dict[str, Path] = {}  # by digest, until no request can need it again
        self._unloaded: set[str] = set()

    def load(self, path: Path, expected: str | None) -> AdapterInfo:
        """Wait for the worker to load it; raises what prevents that."""
        done: Future[AdapterInfo] = Future()
        with self._lock:
            if self._put is None:
                raise EngineStopped("the model's worker process is being restarted: try again in a moment")
            number = next(self._numbers)
            self._pending[number] = done, path
            self._put(LoadAdapter(number, path, None))
        return done.result()

    def unload(self, digest: str) -> None:
        """Take no more requests for it."""
        with self._lock:
            if digest in self._paths:
                self._unloaded.add(digest)
            if self._put is not None:
                self._put(UnloadAdapter(digest))

    def check(self, digest: str) -> None:
        """ModelNotFound where a request names an adapter that is not loaded."""
        if digest and (digest not in self._paths or digest in self._unloaded):
            raise ModelNotFound("the adapter was unloaded: load it again", param="model")

    def answer(self, result: AdapterResult) -> None:
        """What the worker says."""
        with self._lock:
            done, path = self._pending.pop(result.number, (None, None))
            if path is not None and result.info is not None:  # here: this worker may end at any moment
                self._paths[result.info.digest] = path
                self._unloaded.discard(result.info.digest)
        if done is None:
            if result.error is not None:
                LOG.error("an adapter could not be loaded again: %s", result.error.message)
        elif result.info is not None:
            done.set_result(result.info)
        else:
            done.set_exception(result.error or HeadraceError("the adapter was not loaded"))

    def begin(self, put: Put, in_use: Iterable[str] = ()) -> None:
        """A worker is ready: before any request it loads the adapters again, those too that were unloaded and
        are in use by requests that it gets."""
        with self._lock:
            self._put = put
            used = set(in_use)
            self._unloaded &= used
            self._paths = {one: path for one, path in self._paths.items() if one in self._kept(used)}
            for digest, path in self._paths.items():
                put(LoadAdapter(next(self._numbers), path, digest))

    def _kept(self, used: set[str]) -> set[str]:
        return {one for one in self._paths if one in used or one not in self._unloaded}

    def after_replay(self) -> None:
        """The requests were sent again: what was unloaded takes no more."""
        with self._lock:
            for digest in self._unloaded:
                if self._put is not None:
                    self._put(UnloadAdapter(digest))

    def lose(self) -> None:
        """The worker has died: what waits for it fails."""
        with self._lock:
            self._put, pending = None, list(self._pending.values())
            self._pending.clear()
        for done, _ in pending:
            done.set_exception(EngineStopped("the model's worker process ended: load the adapter again"))
