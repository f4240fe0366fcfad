"""L1 and L2: a thousand streams at once, and more requests than can be served."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from load_client import Exchange, begin, fetch, finish, jain, percentile, post
from served import Served, served

from random_model import random_model

COMPLETIONS = "/v1/completions"
DONE = b"data: [DONE]\n\n"
Show = Callable[[str], None]


@pytest.mark.alone
@pytest.mark.parametrize("tokens", [64, pytest.param(128, marks=pytest.mark.soak)])
def test_l1_a_thousand_streams(tiny: Path, show: Show, tokens: int) -> None:
    async def all_streams(port: int) -> list[Exchange]:
        exchanges: list[Exchange] = []
        for number in range(1000):
            body = {"prompt": f"{number} abc", "max_tokens": tokens, "seed": number, "stream": True}
            exchanges.append(await begin(port, post(COMPLETIONS, body | {"ignore_eos": True})))
        return [await finish(exchange) for exchange in exchanges]

    def fairness_of_all(server: Served) -> float:
        start_s = time.perf_counter()
        exchanges = asyncio.run(all_streams(server.port))
        wall_s = time.perf_counter() - start_s
        health = server.get("/health")
        assert {exchange.status for exchange in exchanges} == {200}
        for exchange in exchanges:
            assert exchange.body.endswith(DONE)
            assert exchange.body.count(DONE) == exchange.body.count(b'"finish_reason":"length"') == 1
            assert b'"error"' not in exchange.body
        assert health["running"] == health["waiting"] == 0
        fairness = jain([tokens / (exchange.ended_s - exchange.sent_s) for exchange in exchanges])
        begun_s = min(exchange.sent_s for exchange in exchanges)
        together = jain([tokens / (exchange.ended_s - begun_s) for exchange in exchanges])
        first = [exchange.reads[0][0] - exchange.sent_s for exchange in exchanges]
        show(
            f"1,000 streams of {tokens} tokens in {wall_s:.1f} s ({1000 * tokens / wall_s:,.0f} tokens/s), "
            f"Jain fairness of tokens per second from sending a request to its end {fairness:.4f}, from the "
            f"first request of all {together:.4f}; first token p99 {percentile(first, 0.99) * 1000:,.0f} ms"
        )
        return fairness

    # Some of the shorter streams are over while others still connect: there the client's own pace is in the
    # figure, and what other programs take of it. They make it worse, never better: the best of five counts.
    bound, tries = (0.95, 1) if tokens == 128 else (0.8, 5)
    with served(tiny, "--max-num-seqs", "1000", "--max-batch-tokens", "2048") as server:
        assert any(fairness_of_all(server) >= bound for _ in range(tries))


GOOD_S = 0.5
TOKENS = 128
AT_A_TIME, UNDER_WAY = 8, 12  # who waits for four others to end must begin within GOOD_S


@dataclass
class Phase:
    """What became of the requests of one rate."""

    offered: float
    wall_s: float
    exchanges: list[Exchange] = field(default_factory=list[Exchange])

    def good(self) -> list[Exchange]:
        """Answered whole, the first token within GOOD_S of being sent."""
        return [
            one
            for one in self.exchanges
            if one.status == 200 and one.body.endswith(DONE) and one.reads[0][0] - one.sent_s <= GOOD_S
        ]

    def refused(self) -> list[Exchange]:
        return [one for one in self.exchanges if one.status == 503]

    @property
    def goodput(self) -> float:
        """Good answers per second."""
        return len(self.good()) / self.wall_s

    def refusal_ms(self, share: float) -> float:
        """So many of the refusals came within this time."""
        return percentile([1000 * (one.headers_s - one.sent_s) for one in self.refused()] or [0.0], share)

    def line(self) -> str:
        return (
            f"offered {self.offered:.0f}/s for {self.wall_s:.0f} s: {self.goodput:.1f}/s good, "
            f"{len(self.refused()):,} refused (p50 {self.refusal_ms(0.5):.1f} ms, "
            f"p99 {self.refusal_ms(0.99):.1f} ms)"
        )


def ask(number: int) -> bytes:
    body = {"prompt": f"Story {number}.", "max_tokens": TOKENS, "seed": number, "stream": True}
    return post(COMPLETIONS, body | {"ignore_eos": True})


async def open_loop(port: int, rate: float, wall_s: float) -> Phase:
    """Requests arrive as a Poisson process, whatever becomes of those before."""
    rng = random.Random(7)
    phase = Phase(rate, wall_s)
    tasks: list[asyncio.Task[Exchange]] = []
    start_s = due_s = time.perf_counter()
    while due_s - start_s < wall_s:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(fetch(port, ask(len(tasks)))))
        due_s += rng.expovariate(rate)
    phase.exchanges = await asyncio.gather(*tasks)
    return phase


async def closed_loop(port: int, clients: int, wall_s: float) -> float:
    """Requests per second where each client sends the next one when it has its answer."""
    ended = 0
    stop_s = time.perf_counter() + wall_s

    async def client() -> None:
        nonlocal ended
        while time.perf_counter() < stop_s:
            exchange = await fetch(port, ask(ended))
            ended += exchange.status == 200  # in a line with the await, others' counts would be lost

    await asyncio.gather(*(client() for _ in range(clients)))
    return ended / wall_s


@contextmanager
def without_collector() -> Generator[None]:
    """Python's collector, going through all that pytest and thousands of exchanges hold, would be in the
    client's figures."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.alone
@pytest.mark.parametrize("wall_s", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_l2_more_than_can_be_served(show: Show, tmp_path: Path, wall_s: float) -> None:
    """A model of 11 million parameters on one core; the other is for the server and for those who ask."""

    async def phases(port: int) -> tuple[float, list[Phase]]:
        await closed_loop(port, UNDER_WAY, 1)
        capacity = await closed_loop(port, UNDER_WAY, wall_s)
        return capacity, [await open_loop(port, capacity * times, wall_s) for times in (1, 2, 10)]

    limits = ("--max-num-seqs", str(AT_A_TIME), "--max-concurrent-requests", str(UNDER_WAY), "--threads", "1")
    model = random_model(tmp_path / "model", hidden=384, intermediate=1024, layers=6)
    with served(model, *limits) as server, without_collector():
        capacity, found = asyncio.run(phases(server.port))
        health = server.get("/health")
    for phase in found:
        show(f"capacity {capacity:.1f}/s; {phase.line()}")
        assert {one.status for one in phase.exchanges} <= {200, 503}
        for one in phase.exchanges:
            assert not one.lost
            assert one.status == 503 or one.body.endswith(DONE)
            assert one.status == 200 or one.headers["retry-after"]
    assert found[2].refused(), "ten times the capacity was not too much"
    # The figures to reach are 95 % and 10 ms; on a machine that others use only a collapse can be told from
    # noise.
    assert found[2].goodput > capacity * (0.95 if wall_s == 60 else 0.3)
    assert wall_s < 60 or found[2].refusal_ms(0.99) <= 10
    assert health["running"] == health["waiting"] == 0
