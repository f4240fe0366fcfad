"""Kills and stops of replicas under a mixed load: what was lost or differed, and the time to go on.

    python bench/cluster_faults.py [MODEL] [--faults 200] [--replicas 3] [--streams 10] [--stops 0.1]

For each request of a replica that ends, the time from the fault to its next token counts. A stopped replica
is given up after one second (hang_s = 1), which is in its times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from contextlib import suppress
from typing import Any

from prefill_decode import load

from headrace.engine.client import EngineClient
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.sampling.params import SamplingParams
from headrace.workers.spawn import Spawner


class Reply:
    """A request, when its events came, and its tokens by choice."""

    def __init__(self, engine: EngineClient, request: EngineRequest) -> None:
        self.times_s, self.failed, self.ended = list[float](), False, False
        self.tokens: dict[int, list[int]] = {}
        self.handle = engine.submit(request, self._take)

    def _take(self, events: list[EngineEvent]) -> None:
        self.times_s.append(time.perf_counter())
        for event in events:
            tokens: tuple[int, ...] = getattr(event, "tokens", ())
            if tokens:
                self.tokens.setdefault(getattr(event, "choice", 0), []).extend(tokens)
            self.failed |= isinstance(event, RequestFailed)
        self.ended |= isinstance(events[-1], RequestFinished | RequestFailed)


def asked(seed: int) -> EngineRequest:
    """Greedy or sampled, with one choice or two."""
    temperature = 0.0 if seed % 3 == 0 else 0.9
    params = SamplingParams(
        seed=seed, temperature=temperature, max_tokens=60, n=1 + seed % 2, ignore_eos=True
    )
    return EngineRequest(prompt=(*range(5, 5 + seed % 3 * 40), 6, 7 + seed % 20), params=params)


def finish(replies: list[Reply]) -> None:
    """Wait for all."""
    while not all(one.ended for one in replies):
        time.sleep(0.001)


def fault(
    engine: Any, replies: list[Reply], drawn: random.Random, stops: float
) -> tuple[str, float, set[int]]:
    """One kill or stop; its kind, when it was, and which of the replies its replica had."""
    victim = None
    while victim is None:
        victim = drawn.choice(engine.replicas() or [None])
    kind = signal.SIGSTOP if drawn.random() < stops else signal.SIGKILL
    with engine._lock:
        there = {
            placed.item.request.request_id
            for placed in engine.open.values()
            if placed.link is not None and placed.link.pid == victim.pid
        }
        now_s = time.perf_counter()
        with suppress(ProcessLookupError):
            os.kill(victim.pid, kind)
    return kind.name, now_s, {place for place, one in enumerate(replies) if one.handle.request_id in there}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="mini")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--stops", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    spawner, drawn = Spawner(), random.Random(args.seed)
    settings = {"replicas": args.replicas, "max": args.replicas, "hang_s": 1.0}
    model = load(args.model, args.replicas, settings, spawner)
    engine: Any = model.engine
    undisturbed: dict[int, dict[int, list[int]]] = {}
    recovered: dict[str, list[float]] = {}
    faults = requests = lost = different = 0
    while faults < args.faults:
        while len(engine.replicas()) < args.replicas:
            time.sleep(0.01)
        seeds = [drawn.randrange(60) for _ in range(args.streams)]
        for seed in seeds:
            if seed not in undisturbed:
                alone = Reply(engine, asked(seed))
                finish([alone])
                undisturbed[seed] = alone.tokens
        replies = [Reply(engine, asked(seed)) for seed in seeds]
        time.sleep(drawn.uniform(0.005, 0.1))
        kind, fault_s, there = fault(engine, replies, drawn, args.stops)
        faults += 1
        finish(replies)
        requests += len(replies)
        lost += sum(one.failed for one in replies)
        different += sum(
            not one.failed and one.tokens != undisturbed[seed]
            for one, seed in zip(replies, seeds, strict=True)
        )
        for place in there:
            later = [one for one in replies[place].times_s if one > fault_s]
            recovered.setdefault(kind, []).extend(one - fault_s for one in later[:1])
    model.close()
    spawner.close()
    times = {
        kind: {
            "count": len(found),
            "p50_s": round(statistics.median(found), 4),
            "p99_s": round(sorted(found)[min(len(found) - 1, int(0.99 * len(found)))], 4),
            "max_s": round(max(found), 4),
        }
        for kind, found in recovered.items()
        if found
    }
    print(
        json.dumps(
            {
                "faults": faults,
                "requests": requests,
                "lost": lost,
                "different": different,
                "recovery": times,
                "load": os.getloadavg()[0],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
