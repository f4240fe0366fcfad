"""Threads that render templates and tokenize: some for each model, so that one that takes long delays only
its own requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.tokenization.tokenizer import Tokenizer

T = TypeVar("T")


class ModelThreads:
    """Up to `each` threads for each loaded model; they end with its tokenizer. Lives on the event loop."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._pools: WeakKeyDictionary[Tokenizer, ThreadPoolExecutor] = WeakKeyDictionary()

    def run(self, model: LoadedModel, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in one of the model's threads. Cancelled before it has begun, it is dropped."""
        pool = self._pools.get(model.tokenizer)
        if pool is None:
            pool = ThreadPoolExecutor(self._each, thread_name_prefix="headrace-prompt")
            self._pools[model.tokenizer] = pool
        return asyncio.get_running_loop().run_in_executor(pool, work)

    def close(self) -> None:
        """Drop what has not begun."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pool in self._pools.values():
            pool.shutdown()
