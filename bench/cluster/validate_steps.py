"""The simulator beside real engines whose steps take given times: works on a busy machine.

    python bench/cluster/validate_steps.py MODEL [--replicas 2] [--seconds 25] [--load 0.5]

Engines, schedulers and the router run in real time in this process, with one thread for each engine. A step
sleeps until what the costs say has passed; MODEL must compute much faster than that, with a context of 1,024.
Steps that end late are part of the machine: the simulator's costs are those given, times the mean ratio of
what steps took.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from typing import Any

from msgspec.structs import asdict, replace
from validate import Reply, figures, paced, predicted, replayed
from workloads import GROUP_TOKENS, WORKLOADS

from headrace.cluster.cost_model import CostModel
from headrace.cluster.prefix_index import group_keys
from headrace.cluster.router import RoutedRequest, Router
from headrace.engine.client import LoadedModel
from headrace.engine.engine import Engine
from headrace.engine.request import Delta, EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.simulate.simulation import ReplicaShape, simulate

COSTS = CostModel(step_s=0.05, prefill_s=1e-3, row_s=4e-3, pair_s=2e-6)


class Slowed:
    """An executor whose steps take what the costs say."""

    def __init__(self, executor: Any, seconds: float) -> None:
        self._executor, self._seconds = executor, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(self, step: Any) -> Any:
        """Sleep for the rest."""
        began_s = time.perf_counter()
        found = self._executor.run(step)
        time.sleep(max(0.0, began_s + self._seconds - time.perf_counter()))
        return found


class Ratios:
    """What steps took beside what they should."""

    def __init__(self) -> None:
        self.given_s = self.taken_s = 0.0
        step, execute = Engine._step, Engine._execute
        planned = threading.local()

        def timed(engine: Engine, executor: Any) -> None:
            planned.seconds, began_s = 0.0, time.perf_counter()
            step(engine, executor)
            if planned.seconds:
                self.given_s += planned.seconds
                self.taken_s += time.perf_counter() - began_s

        def slowed(engine: Engine, executor: Any, plan: Any) -> Any:
            planned.seconds = COSTS.seconds(plan.work)
            return execute(engine, Slowed(executor, planned.seconds), plan)

        Engine._step, Engine._execute = timed, slowed


class Front:
    """Routes requests to the engines, as a server does."""

    def __init__(self, models: list[LoadedModel], shape: ReplicaShape) -> None:
        self._models, self._lock, self._next = models, threading.Lock(), 0
        self._router = Router("kv", COSTS, group_tokens=GROUP_TOKENS)
        for number in range(len(models)):
            self._router.add(number, shape.capacity)

    def submit(self, request: EngineRequest, sink: Any) -> None:
        """As an engine client."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            routed = RoutedRequest(number, len(request.prompt), group_keys(request.prompt, ""))
            choice = self._router.choose(routed)
            self._router.sent(routed, choice)

        def took(events: list[EngineEvent]) -> None:
            with self._lock:
                if isinstance(events[0], Delta):
                    self._router.first_token(number)
                if isinstance(events[-1], RequestFinished | RequestFailed):
                    self._router.ended(number)
            sink(events)

        self._models[choice.replica].engine.submit(request, took)


class Engines:
    """What `replayed` plays to."""

    def __init__(self, models: list[LoadedModel], shape: ReplicaShape) -> None:
        self.engine: Any = Front(models, shape)
        self.vocabulary = models[0].tokenizer.vocabulary_size


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("model")
    options.add_argument("--replicas", type=int, default=2)
    options.add_argument("--seconds", type=float, default=25.0)
    options.add_argument("--load", type=float, default=0.5)
    given = options.parse_args()
    ratios = Ratios()
    engine_options = EngineOptions(threads=1, max_num_seqs=16, speculative="off")
    models = [load_model(given.model, engine_options) for _ in range(given.replicas)]
    for model in models:
        model.engine._multi_step._able = False  # type: ignore[attr-defined]
    plan = models[0].plan
    shape = ReplicaShape(
        **asdict(COSTS),
        kv_tokens=plan.page_count * plan.page_tokens,
        max_batch_tokens=plan.step_tokens,
        max_num_seqs=16,
    )
    for name in WORKLOADS:
        machine: Any = Engines(models, shape)
        drawn = random.Random(1)
        prompts = [tuple(drawn.randrange(10, 100) for _ in range(90)) for _ in range(3 * given.replicas)]
        for first in [Reply(machine.engine, prompt, 4, cache=False) for prompt in prompts]:
            first.ended.wait()  # the engines know now what steps take
        ratios.given_s = ratios.taken_s = 0.0
        trace = paced(name, shape, given.replicas, given.seconds, given.load)
        replies, asked = replayed(machine, trace)
        ratio = ratios.taken_s / ratios.given_s
        slower = replace(shape, **{key: value * ratio for key, value in asdict(COSTS).items()})
        result = simulate(asked, slower, given.replicas, "kv", block_tokens=GROUP_TOKENS)
        real, told = figures(replies, asked), predicted(result)
        print(f"{name}: {len(asked)} requests, load {os.getloadavg()[0]:.1f}, steps {ratio - 1:+.1%}")
        for key, value in real.items():
            error = told[key] / value - 1 if value else 0.0
            print(f"  {key:17} real {value:10.4f}  simulated {told[key]:10.4f}  error {error:+.1%}")
    for model in models:
        model.close()


if __name__ == "__main__":
    main()
