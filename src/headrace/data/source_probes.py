"""Whether datasets can be opened, asked of their sources now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from headrace.data.catalogue import Dataset
from headrace.errors import HeadraceError, Overloaded

PROBE_S = 5.0
"""For one source, which then is called down."""
KEPT_S = 10.0
_TOGETHER = 8
_ALL_S = 12.0


class SourceProbes:
    """Opens datasets, each by one thread at a time, and remembers for KEPT_S what came of it."""

    def __init__(self, open_one: Callable[[Dataset], object]) -> None:
        """`open_one` raises HeadraceError where a dataset cannot be opened."""
        self._open = open_one
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str | None]] = {}

    def errors(self, datasets: Iterable[Dataset]) -> dict[str, str]:
        """What is wrong with those that cannot be opened, by their names. It takes _ALL_S at most."""
        found: dict[str, str] = {}
        wanted = list(datasets)
        if not self._lock.acquire(timeout=_ALL_S):  # another asks them just now
            return {one.name: "its source has not answered yet" for one in wanted if self._is_due(one)}
        try:
            due = [one for one in wanted if self._is_due(one)]
            if due:
                self._ask(due)
        finally:
            self._lock.release()
        for one in wanted:
            error = self._known.get(one.name, (0.0, "its source has not answered yet"))[1]
            if error is not None:
                found[one.name] = error
        return found

    def _is_due(self, dataset: Dataset) -> bool:
        known = self._known.get(dataset.name)
        return known is None or time.monotonic() - known[0] > KEPT_S

    def _ask(self, datasets: list[Dataset]) -> None:
        threads = ThreadPoolExecutor(_TOGETHER, thread_name_prefix="headrace-probe")
        try:
            wait([threads.submit(self._probe, one) for one in datasets], _ALL_S)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _probe(self, dataset: Dataset) -> None:
        error = None
        try:
            self._open(dataset)
        except Overloaded:
            return  # it says nothing of the source
        except HeadraceError as failed:
            error = failed.message
        self._known[dataset.name] = time.monotonic(), error
