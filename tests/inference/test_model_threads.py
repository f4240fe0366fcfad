"""A tokenizer or template that takes for ever holds up requests for its own model alone."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.inference.model_source import ModelThreads


class Tokenizer:
    """Stands for the model's."""


def test_a_model_that_hangs_delays_no_other() -> None:
    release = threading.Event()

    async def scene() -> None:
        hostile: Any = SimpleNamespace(tokenizer=Tokenizer())
        other: Any = SimpleNamespace(tokenizer=Tokenizer())
        with ModelThreads(2) as threads:
            hanging = [threads.run(hostile, release.wait) for _ in range(5)]
            assert await asyncio.wait_for(threads.run(other, lambda: "done"), 10) == "done"
            assert not any(one.done() for one in hanging)
            release.set()
            await asyncio.gather(*hanging)

    asyncio.run(scene())


def test_what_was_cancelled_is_not_run() -> None:
    release, ran = threading.Event(), list[int]()

    async def scene() -> None:
        model: Any = SimpleNamespace(tokenizer=Tokenizer())
        with ModelThreads(1) as threads:
            first = threads.run(model, release.wait)
            left = threads.run(model, lambda: ran.append(1))
            left.cancel()
            await asyncio.sleep(0)  # the loop tells the threads
            with pytest.raises(asyncio.CancelledError):
                await left
            release.set()
            await first
            await threads.run(model, lambda: ran.append(2))

    asyncio.run(scene())
    assert ran == [2]
