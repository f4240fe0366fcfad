"""P5: requests of every kind, one after the other and side by side, leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from in_process import Running, running_server
from load_client import begin, finish, post

from headrace.api.http.request_log import UNREAD
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

REQUESTS = int(os.environ.get("TEST_MIXED_REQUESTS", "500"))  # 10,000 by `make nightly`
SIDE_BY_SIDE = 24
MIB = 2**20


@dataclass(frozen=True)
class Holdings:
    """What the process has and holds."""

    rss_bytes: int
    fds: int
    threads: int
    tasks: int
    pages: int

    def line(self) -> str:
        return (
            f"{self.rss_bytes / MIB:.1f} MiB, {self.fds} fds, {self.threads} threads, {self.tasks} tasks, "
            f"{self.pages} pages"
        )


def holdings(server: Running) -> Holdings:
    gc.collect()
    process = psutil.Process()
    loop = server.server.servers[0].get_loop()
    status = server.model.engine.status()
    return Holdings(
        process.memory_info().rss,
        process.num_fds(),
        threading.active_count(),
        len(asyncio.all_tasks(loop)),
        status.available_pages,
    )


def random_request(rng: random.Random) -> tuple[bytes, str]:
    """A request and what is to become of it: an answer, a refusal, or the client's leaving."""
    stream = rng.random() < 0.5
    more = {
        "max_tokens": rng.randint(1, 12),
        "seed": rng.randrange(2**32),
        "stream": stream,
        "n": rng.choice([1, 1, 3]),
    }
    if rng.random() < 0.2:
        more |= {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.1, "stop": ["a", "%"]}
    text = "".join(chr(rng.randint(33, 90)) for _ in range(rng.randint(1, 120)))
    kind = rng.choice(["chat", "chat", "text", "text", "grammar", "refused", "leaves", "logprobs"])
    match kind:
        case "text":
            return post("/v1/completions", more | {"prompt": [text, text[:7]]}), "answer"
        case "logprobs":
            return post("/v1/completions", more | {"prompt": text, "logprobs": 3, "echo": False}), "answer"
        case "grammar":
            return post("/v1/completions", more | {"prompt": text, "guided_regex": "[0-9]{3}"}), "answer"
        case "refused":
            bad = rng.choice([{"temprature": 1}, {"max_tokens": -1}, {"max_tokens": 10**6}, {"model": "no"}])
            return post("/v1/completions", more | {"prompt": text} | bad), "refusal"
    chat = more | {"messages": [{"role": "user", "content": text}]}
    if kind == "leaves":
        return post("/v1/chat/completions", chat | {"max_tokens": 100, "ignore_eos": True}), "leaving"
    return post("/v1/chat/completions", chat), "answer"


async def drive(port: int, count: int, rng: random.Random) -> Counter[str]:
    """`count` requests, some at a time; what became of them."""
    seen: Counter[str] = Counter()
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            request, fate = random_request(rng)
            exchange = await begin(port, request)
            if fate == "leaving":
                await asyncio.sleep(rng.random() * 0.02)
                assert exchange.transport
                exchange.transport.close()
            else:
                await finish(exchange)
                assert not exchange.lost
                assert exchange.status == 200 if fate == "answer" else 400 <= exchange.status < 500, (
                    exchange.body
                )
                assert b'"error"' not in exchange.body or fate == "refusal", exchange.body
            seen[fate] += 1

    await asyncio.gather(*(client() for _ in range(SIDE_BY_SIDE)))
    return seen


async def settled(server: Running) -> None:
    """Wait until the last who left is forgotten."""
    service = server.server._service
    async with asyncio.timeout(30):
        while service.local.runs or service.gate.open_calls or server.server.server_state.connections:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("count", [REQUESTS, pytest.param(100_000, marks=pytest.mark.soak)])
def test_p5_nothing_is_left_behind(tiny: Path, show: Callable[[str], None], count: int) -> None:
    model = load_model(str(tiny), EngineOptions(max_num_seqs=32, max_batch_tokens=128, threads=2))
    rng = random.Random(8)

    async def run(requests: int) -> Counter[str]:
        seen = await drive(server.port, requests, rng)
        await settled(server)
        return seen

    with running_server(model) as server:
        asyncio.run(run(max(UNREAD + 500, count // 10)))  # until what is bounded has reached its bound
        before = holdings(server)
        seen = asyncio.run(run(count))
        after = holdings(server)
    model.close()
    show(f"{count:,} requests ({dict(seen)}): before {before.line()}; after {after.line()}")
    assert (after.fds, after.threads, after.tasks, after.pages) == (
        before.fds,
        before.threads,
        before.tasks,
        before.pages,
    )
    assert after.rss_bytes - before.rss_bytes <= 16 * MIB
