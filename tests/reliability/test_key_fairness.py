"""A key with a long queue of requests does not starve another key's single one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from served import Served, served

QUEUED = 500
SLOTS = 4


async def ask(client: httpx.AsyncClient, key: str, number: int) -> str:
    body = {"prompt": f"{number}", "max_tokens": 16, "seed": number, "ignore_eos": True}
    reply = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


async def race(server: Served) -> tuple[int, str, str]:
    """How many requests of the other key ended before the single one, which came last; what it said, and what
    it says alone."""
    started = psutil.Process(server.process.pid).children(recursive=True)
    [worker] = [one for one in started if not one.children()]  # it may be a child's fork
    limits = httpx.Limits(max_connections=None)
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300, trust_env=False) as client:

        async def wait_for(count: int) -> None:
            headers = {"authorization": "Bearer single"}
            while (await client.get("/v1/models", headers=headers)).json()["data"][0]["in_use"] < count:
                await asyncio.sleep(0.01)

        worker.suspend()
        queued = [asyncio.create_task(ask(client, "many", number)) for number in range(QUEUED)]
        await wait_for(QUEUED)
        single = asyncio.create_task(ask(client, "single", 7))
        await wait_for(QUEUED + 1)
        worker.resume()
        text = await single
        before = sum(task.done() for task in queued)
        await asyncio.gather(*queued)
    # Over a connection of its own: the server closes idle ones after 5 s, about as long as all of this takes.
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
        return before, text, await ask(client, "single", 7)


def test_a_single_request_is_served_among_the_first(tiny: Path, show: Callable[[str], None]) -> None:
    flags = ("--api-key", "many,single", "--max-num-seqs", str(SLOTS), "--threads", "1")
    with served(tiny, *flags) as server:
        before, text, alone = asyncio.run(race(server))
    show(f"{before} of {QUEUED} requests of one key ended before the single one of another, which came last")
    # Those that ran and were admitted in the same turn, and what the client read at once with it.
    assert before <= QUEUED // 5
    assert text == alone
