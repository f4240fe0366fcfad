"""Six models for some minutes: what share of the machine each gets, and what the others notice when one dies.

    python bench/serving/shares.py [--seconds 600] [--cpus 0] [--json]

One server with three decoders (`mini`) and three encoders (`embed`), each in a process of its own and each
with more requests than it can answer. Its share is the processor time of its process. At the end one process
after the other is killed; the stall is the longest time in which the streams of another decoder, which go on,
get no token, beside the longest such time before. With `--cpus 0` everything runs on processor 0.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import time

import psutil
from load_client import Exchange, fetch, post, processor_s, served, worker_processes

DECODERS = ("first", "second", "third")
ENCODERS = ("one", "two", "three")
CLIENTS = 4  # of each model
TOKENS, TEXTS = 128, 16
TEXT = "The sea was calm that evening, and the boats came home one after the other before it was dark. "
KILL_AFTER_S, WATCH_S = 2.0, 2.0


class Watch:
    """When tokens of a decoder's streams arrived, and how many requests of each model ended."""

    def __init__(self) -> None:
        self.token_s: dict[str, list[float]] = {name: [] for name in DECODERS}
        self.ended: dict[str, int] = dict.fromkeys((*DECODERS, *ENCODERS), 0)
        self.failed: dict[str, int] = dict.fromkeys((*DECODERS, *ENCODERS), 0)

    def longest_gap_ms(self, name: str, since_s: float, until_s: float) -> float:
        """The longest time without a token of that decoder's streams."""
        times = [since_s, *sorted(at for at in self.token_s[name] if since_s < at < until_s), until_s]
        return 1e3 * max(after - before for before, after in itertools.pairwise(times))


async def client(port: int, model: str, index: int, watch: Watch, until_s: float) -> None:
    """Requests to one model, one after the other."""
    while time.perf_counter() < until_s:
        exchange = await fetch(port, request(model, index))
        watch.ended[model] += exchange.status == 200
        watch.failed[model] += exchange.status != 200 or b'"error"' in bytes(exchange.body)
        if model in DECODERS:
            watch.token_s[model] += read_times(exchange)


def read_times(exchange: Exchange) -> list[float]:
    """When parts of the reply arrived."""
    return [at for at, _ in exchange.reads]


def request(model: str, index: int) -> bytes:
    """A stream of TOKENS tokens, or TEXTS texts to embed."""
    if model in ENCODERS:
        return post("/v1/embeddings", {"model": model, "input": [TEXT * 3 + str(index)] * TEXTS})
    body = {"model": model, "prompt": f"{TEXT}{index}", "max_tokens": TOKENS, "ignore_eos": True}
    return post("/v1/completions", body | {"seed": index, "stream": True})


async def measure(port: int, server: psutil.Process, seconds: float) -> dict[str, object]:
    """Shares, ended requests, and stalls after each kill."""
    first = {model: request(model, 0) for model in (*DECODERS, *ENCODERS)}
    processes = await worker_processes(port, server, first)
    watch, began_s = Watch(), time.perf_counter()
    until_s = began_s + seconds + len(processes) * (KILL_AFTER_S + WATCH_S) + 5
    clients = [
        asyncio.create_task(client(port, model, index, watch, until_s))
        for model in processes
        for index in range(CLIENTS)
    ]
    await asyncio.sleep(min(5.0, seconds / 4))  # until all run
    before = {model: processor_s(process) for model, process in processes.items()}
    counted_s = time.perf_counter()
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - counted_s
    used = {model: processor_s(process) - before[model] for model, process in processes.items()}
    ended = dict(watch.ended)
    kills = [await killed(model, processes[model], watch) for model in processes]
    for one in clients:
        one.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    finished = [stalls(watch, *kill) for kill in kills]
    mean = sum(used.values()) / len(used)
    return {
        "seconds": round(took_s, 1),
        "share_of_the_mean": {model: round(one / mean, 3) for model, one in used.items()},
        "ended": ended,
        "failed": watch.failed,
        "stalls_ms": finished,
    }


async def killed(model: str, process: psutil.Process, watch: Watch) -> tuple[str, float]:
    """Kill a model's process, and go on for a while."""
    await asyncio.sleep(KILL_AFTER_S)
    at_s = time.perf_counter()
    process.send_signal(signal.SIGKILL)
    await asyncio.sleep(WATCH_S)
    return model, at_s


def stalls(watch: Watch, model: str, at_s: float) -> dict[str, object]:
    """The longest gap of each other decoder's tokens just after a kill, and just before."""
    others = [name for name in DECODERS if name != model]
    return {
        "killed": model,
        "before": {name: round(watch.longest_gap_ms(name, at_s - WATCH_S, at_s), 1) for name in others},
        "after": {name: round(watch.longest_gap_ms(name, at_s, at_s + WATCH_S), 1) for name in others},
    }


def main() -> None:
    """Start the server, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cpus", help="such as 0, or 0,1: what the server may use")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.cpus is not None:
        os.sched_setaffinity(0, [int(one) for one in options.cpus.split(",")])
    table = [f'[models.{name}]\npath = "mini"\n' for name in DECODERS]
    table += [f'[models.{name}]\npath = "embed"\n' for name in ENCODERS]
    with served("".join(table)) as (port, pid):
        found = asyncio.run(measure(port, psutil.Process(pid), options.seconds))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
