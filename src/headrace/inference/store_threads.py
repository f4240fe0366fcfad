"""The threads that read and write the store, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class StoreThreads:
    """A pool of `count` threads of its own: what the store holds up holds up nothing else."""

    def __init__(self, count: int = 2) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="headrace-store")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the store in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Forget what waits; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
