"""The simulator beside real replicas on this machine: the same arrivals, errors of times and throughput.

    python bench/cluster/validate.py [MODEL] [--replicas 1,2,4] [--seconds 20] [--load 0.5] [--write FILE]

Each replica has one thread, and a core of its own where there are as many. What steps cost, and how much
replicas slow each other down, is measured by runs of other prompts, before and after each replay; nothing of
a replay is used.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from workloads import WORKLOADS, at_load

from headrace.bench.serve.trace import TraceRequest
from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.cluster.cost_model import CostModel
from headrace.cluster.prefix_index import GROUP_TOKENS
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import LoadedModel
from headrace.engine.request import Delta, EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.engine.step_times import StepWork, attended, fitted_step_times
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.simulate.simulation import ReplicaShape, SimulationResult, simulate
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import Spawner

SHAPES = ((1, 32, 24), (1, 256, 2), (1, 800, 2), (4, 64, 24), (12, 32, 16), (2, 448, 12), (4, 600, 16))
"""Runs as (rows, tokens of each prompt, tokens of each answer)."""
Run = tuple[StepWork, float]


class Reply:
    """A request, and when its tokens came."""

    def __init__(
        self, engine: ClusterClient, prompt: tuple[int, ...], tokens: int, *, cache: bool = True
    ) -> None:
        self.tokens, self.began_s, self.first_s, self.end_s = tokens, time.perf_counter(), 0.0, 0.0
        self.cached, self.reply_s, self.ended = 0, 0.0, threading.Event()
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        engine.submit(EngineRequest(prompt=prompt, params=params, cache=cache), self._take)

    def _take(self, events: list[EngineEvent]) -> None:
        now_s = time.perf_counter()
        for event in events:
            if isinstance(event, Delta):
                self.first_s = self.first_s or now_s
            if isinstance(event, RequestFailed):
                raise event.error
            if isinstance(event, RequestFinished):
                self.end_s, self.cached = now_s, event.usage.cached_tokens
                self.reply_s = self.first_s - self.began_s - event.timing.first_token_s
                self.ended.set()


def load(model: str, replicas: int, seqs: int, spawner: Spawner) -> LoadedModel:
    """Started, each replica on a core of its own where there are enough."""
    options = EngineOptions(threads=1, max_num_seqs=seqs, speculative="off")
    settings = ClusterSettings(replicas=replicas)
    loader = ClusterLoader(ModelSpec(name="bench", model=model, options=options), settings, spawner=spawner)
    loader.plan(4 << 30)
    loaded = loader.load(lambda done, total: None)
    engine: Any = loaded.engine
    while len(engine.replicas()) < replicas:
        time.sleep(0.05)
    cores = sorted(os.sched_getaffinity(0))
    for one in engine.replicas() if replicas <= len(cores) else ():
        for thread in Path(f"/proc/{one.pid}/task").iterdir():
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), {cores[one.replica]})
    return loaded


class Machine:
    """What steps of the replicas cost. Of each shape of runs all are kept; the median counts."""

    def __init__(self, loaded: LoadedModel, replicas: int) -> None:
        assert isinstance(loaded.engine, ClusterClient)
        self.engine, self.replicas = loaded.engine, replicas
        self.vocabulary, self._random = loaded.tokenizer.vocabulary_size, random.Random(7)
        self._alone: list[list[Run]] = [[] for _ in SHAPES]
        self._together: dict[int, list[list[float]]] = {}
        self._replies_s: list[float] = []
        self.run(1, 1, 32, 4)

    def run(self, busy: int, rows: int, prompt: int, answer: int) -> Run:
        """Of each of so many replicas at once: the mean step of one, and its seconds."""
        router = self.engine.router
        for number in router.replicas:
            router.drain(number, number >= busy)
        before, policy, router.policy = self.engine.status().steps, router.policy, "round-robin"
        replies = [Reply(self.engine, self._drawn(prompt), answer, cache=False) for _ in range(rows * busy)]
        for one in replies:
            one.ended.wait()
        router.policy = policy
        for number in router.replicas:
            router.drain(number, False)
        steps = max(1, self.engine.status().steps - before) / busy
        seconds = max(one.end_s for one in replies) - min(one.began_s for one in replies)
        if rows * busy == 1:
            self._replies_s.append(replies[0].reply_s)
        seconds -= statistics.median(self._replies_s)
        pairs = rows * (attended(0, prompt) + attended(prompt, answer - 1))
        work = StepWork(rows * prompt / steps, rows * (answer - 1) / steps, pairs / steps)
        return work, seconds / steps

    def measure(self, rounds: int) -> None:
        """Once more."""
        counts = sorted({1, min(2, self.replicas), self.replicas})
        for number in range(rounds):
            for place, shape in enumerate(SHAPES):
                for busy in counts[:: -1 if number % 2 else 1]:
                    found = self.run(busy, *shape)
                    if busy == 1:
                        self._alone[place].append(found)
                    else:
                        runs = self._together.setdefault(busy, [[] for _ in SHAPES])
                        runs[place].append(found[1])

    def shape(self, given: ReplicaShape) -> ReplicaShape:
        """As measured."""
        middle = [sorted(runs, key=lambda run: run[1])[len(runs) // 2] for runs in self._alone]
        fitted = CostModel.of(fitted_step_times(middle))
        speeds = {1: 1.0}
        for busy, runs in self._together.items():
            ratios = [
                alone / statistics.median(times) for (_, alone), times in zip(middle, runs, strict=True)
            ]
            speeds[busy] = statistics.median(ratios)
        known = sorted(speeds)
        together = [
            float(np.interp(busy, known, [one * speeds[one] for one in known])) / busy
            for busy in range(1, self.replicas + 1)
        ]
        costs = asdict(fitted)
        costs |= {"step_s": max(costs["step_s"], 1e-7), "prefill_s": max(costs["prefill_s"], 1e-9)}
        reply_s = statistics.median(self._replies_s)
        return replace(given, **costs, per_machine=self.replicas, speeds=tuple(together), reply_s=reply_s)

    def _drawn(self, tokens: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(10, self.vocabulary) for _ in range(tokens))


def paced(name: str, shape: ReplicaShape, replicas: int, seconds: float, load: float) -> list[TraceRequest]:
    """As many requests as take so long at this share of what the replicas can do."""
    make = WORKLOADS[name]
    _, each_s = at_load(make(100), shape, replicas, load)
    trace, _ = at_load(make(max(20, min(3000, int(seconds / each_s)))), shape, replicas, load)
    return trace


def replayed(machine: Machine, trace: Sequence[TraceRequest]) -> tuple[list[Reply], list[TraceRequest]]:
    """The replies, and the trace with the times at which they were really asked for."""

    def tokens(seed: str) -> list[int]:
        drawn = random.Random(seed)
        return [drawn.randrange(10, machine.vocabulary) for _ in range(GROUP_TOKENS)]

    prompts: list[tuple[int, ...]] = []
    for number, one in enumerate(trace):
        whole = one.prompt_tokens // GROUP_TOKENS
        found = [token for block in one.blocks[:whole] for token in tokens(f"block {block}")]
        found += tokens(f"{time.time()} {number}")[: one.prompt_tokens - len(found)]
        prompts.append(tuple(found))
    began_s = time.perf_counter() + 0.05
    replies: list[Reply] = []
    for one, prompt in zip(trace, prompts, strict=True):
        time.sleep(max(0.0, began_s + one.at_s - time.perf_counter()))
        replies.append(Reply(machine.engine, prompt, one.output_tokens))
    for reply in replies:
        reply.ended.wait()
    asked = [
        replace(one, at_s=reply.began_s - replies[0].began_s)
        for one, reply in zip(trace, replies, strict=True)
    ]
    return replies, asked


def figures(replies: Sequence[Reply], trace: Sequence[TraceRequest]) -> dict[str, float]:
    """What clients saw."""
    ttfts = [one.first_s - one.began_s for one in replies]
    tpots = [(one.end_s - one.first_s) / (one.tokens - 1) for one in replies]
    seconds = max(one.end_s for one in replies) - replies[0].began_s
    return {
        "ttft_mean_s": statistics.mean(ttfts),
        "ttft_p95_s": float(np.percentile(ttfts, 95)),
        "tpot_mean_s": statistics.mean(tpots),
        "tpot_p95_s": float(np.percentile(tpots, 95)),
        "throughput_tok_s": sum(one.tokens for one in replies) / seconds,
        "hit_rate": sum(one.cached for one in replies) / sum(one.prompt_tokens for one in trace),
    }


def predicted(result: SimulationResult) -> dict[str, float]:
    """The same of the simulation."""
    return {
        "ttft_mean_s": result.ttft_s.mean,
        "ttft_p95_s": result.ttft_s.p95,
        "tpot_mean_s": result.tpot_s,
        "tpot_p95_s": result.tpot_p95_s,
        "throughput_tok_s": result.throughput_tok_s,
        "hit_rate": result.hit_rate,
    }


def validate(given: argparse.Namespace, replicas: int, spawner: Spawner) -> ReplicaShape:
    """Print the errors with so many replicas; what was measured."""
    loaded = load(given.model, replicas, given.seqs, spawner)
    machine = Machine(loaded, replicas)
    plan = loaded.plan
    room = ReplicaShape(
        kv_tokens=plan.page_count * plan.page_tokens,
        max_batch_tokens=plan.step_tokens,
        max_num_seqs=given.seqs,
    )
    machine.measure(given.rounds)
    played: dict[str, tuple[list[Reply], list[TraceRequest]]] = {}
    for name in given.workloads.split(","):
        trace = paced(name, machine.shape(room), replicas, given.seconds, given.load)
        played[name] = replayed(machine, trace)
        machine.measure(given.rounds)
    shape = machine.shape(room)
    published = [asdict(one.costs) for one in machine.engine.replicas() if one.costs is not None]
    print(f"\n{replicas} replicas, load {os.getloadavg()[0]:.1f}, measured {asdict(shape.costs)}")
    print(f"speeds together {[round(one, 3) for one in shape.speeds]}, published {published[0]}")
    for name, (replies, asked) in played.items():
        real = figures(replies, asked)
        found = simulate(asked, shape, replicas, "kv", block_tokens=GROUP_TOKENS)
        told = predicted(found)
        errors = {key: told[key] / real[key] - 1 if real[key] else 0.0 for key in real}
        print(f"{name}: {len(asked)} requests in {asked[-1].at_s:.1f} s, utilization {found.utilization:.0%}")
        for key, value in real.items():
            print(f"  {key:17} real {value:10.4f}  simulated {told[key]:10.4f}  error {errors[key]:+.1%}")
        if given.json:
            print(json.dumps({"replicas": replicas, "workload": name, "real": real, "simulated": told}))
    loaded.close()
    return shape


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("model", nargs="?", default="mini")
    options.add_argument("--replicas", default="1,2,4")
    options.add_argument("--workloads", default="mooncake,chat")
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--load", type=float, default=0.5)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seqs", type=int, default=16)
    options.add_argument("--write", type=Path, help="cluster file for `headrace simulate --cluster`")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    spawner = Spawner()
    for count in map(int, given.replicas.split(",")):
        shape = validate(given, count, spawner)
        if given.write is not None and count == 1:
            lines = [f"{name} = {value}" for name, value in asdict(shape).items() if name != "speeds"]
            given.write.write_text("\n".join(["[machines.measured]", *lines, ""]))
    spawner.close()


if __name__ == "__main__":
    main()
