"""No stream that was opened is dropped without being closed, whenever its request is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.api.http.generation import unless_gone


class Opened:
    """What has to be closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class Waiting:
    """A client that stays."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("turns", range(6))
def test_cancelled_while_the_stream_opens(turns: int) -> None:
    opened: list[Opened] = []
    http: Any = Waiting()

    async def opening() -> Opened:
        await asyncio.sleep(0)
        found = Opened()
        opened.append(found)
        return found

    async def respond() -> None:
        found = await unless_gone(http, opening(), drop=lambda one: one.aclose())
        assert found is not None
        await found.aclose()

    async def run() -> None:
        task = asyncio.ensure_future(respond())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await asyncio.sleep(0)
        assert [one.closed for one in opened] in ([], [1])

    asyncio.run(run())
