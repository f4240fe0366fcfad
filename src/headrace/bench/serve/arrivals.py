"""Load patterns (fixed concurrency, Poisson arrivals, trace replay), and running one load point."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from headrace.bench.serve.http_client import begin, finish
from headrace.bench.serve.result import Outcome, RequestError, outcome_of
from headrace.bench.serve.target import Target

Form = Literal["concurrency", "rate", "speed"]
Progress = Callable[[int], None]
"""Called with the number of requests that have ended."""


class Point(Struct, frozen=True):
    """One load level.

    `concurrency` (closed loop): this many users, each sending its next request when the previous one has
    ended. `rate` (open loop): this many requests per second on average, a Poisson process independent of
    the server.
    `speed`: a trace, replayed this many times faster.
    """

    form: Form
    level: float

    def __str__(self) -> str:
        form = {"concurrency": "concurrency {}", "rate": "{} requests/s", "speed": "{} x the trace's pace"}
        return form[self.form].format(f"{self.level:g}")


class ArrivalProcess(Struct, frozen=True):
    """A request ready to be sent; `at_s` is its time after the start, in open-loop patterns."""

    request: bytes
    at_s: float = 0.0


def poisson_times(rate_per_s: float, count: int, seed: int) -> list[float]:
    """Arrival times in seconds of `count` requests of a Poisson process, the first at 0; gaps are
    exponentially distributed with mean 1 / rate.
    """
    gaps_s = np.random.default_rng([seed, 4]).exponential(1 / rate_per_s, count)
    return (np.cumsum(gaps_s) - gaps_s[0]).tolist()


async def run_point(
    target: Target, point: Point, sendings: Sequence[ArrivalProcess], timeout_s: float, progress: Progress
) -> list[Outcome]:
    """Send all requests in the point's pattern and wait for all to end; outcomes are in sending order."""
    outcomes: dict[int, Outcome] = {}

    async def one(index: int, due_s: float) -> None:
        outcomes[index] = await _exchange(target, sendings[index].request, due_s, timeout_s)
        progress(len(outcomes))

    if point.form == "concurrency":
        left = iter(range(len(sendings)))

        async def user() -> None:
            for index in left:
                await one(index, time.perf_counter())

        await asyncio.gather(*(user() for _ in range(int(point.level))))
    else:
        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for index, sending in enumerate(sendings):
                due_s = start_s + sending.at_s
                await asyncio.sleep(due_s - time.perf_counter())
                group.create_task(one(index, due_s))
    return [outcomes[index] for index in range(len(sendings))]


async def _exchange(target: Target, request: bytes, due_s: float, timeout_s: float) -> Outcome:
    sent_s = time.perf_counter()

    def failed(kind: str, message: str) -> Outcome:
        return Outcome(
            due_s=due_s, sent_s=sent_s, ended_s=time.perf_counter(), fault=RequestError(kind, message)
        )

    try:
        async with asyncio.timeout(timeout_s):
            exchange = await finish(await begin(target.address, request), timeout_s)
    except TimeoutError:
        return failed("timeout", f"not finished within {timeout_s:g} s")
    except OSError as error:
        return failed("connection", str(error))
    return outcome_of(exchange, due_s, sent_s)
