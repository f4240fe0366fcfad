"""Time per token beside long prompts: one process, two replicas, prefill and decode apart, at equal cores.

    python bench/prefill_decode.py [MODEL] [--cores 2] [--streams 4] [--prompt 1500] [--rounds 3]

Streams generate without end while prompts that share nothing come one after another. The ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from typing import Any

from headrace.cluster.cluster_loader import ClusterLoader
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import EngineClient, LoadedModel
from headrace.engine.request import Delta, EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import Spawner

WAYS = {
    "one process": {"replicas": 1},
    "two replicas": {"replicas": 2},
    "prefill 1, decode 1": {"prefill": 1, "decode": 1, "replicas": 2, "disaggregation": "always"},
}


def load(model: str, cores: int, settings: dict[str, Any], spawner: Spawner) -> LoadedModel:
    """Started, with all replicas."""
    found = ClusterSettings(**settings)
    options = EngineOptions(threads=max(1, cores // found.replicas), max_num_seqs=16)
    loader = ClusterLoader(ModelSpec(name="bench", model=model, options=options), found, spawner=spawner)
    loader.plan(4 << 30)
    loaded = loader.load(lambda done, total: None)
    engine: Any = loaded.engine
    while len(engine.replicas()) < found.replicas:
        time.sleep(0.05)
    return loaded


class Reply:
    """A request, and when its tokens came."""

    def __init__(self, engine: EngineClient, prompt: tuple[int, ...], tokens: int) -> None:
        self.began_s, self.tokens = time.perf_counter(), 0
        self.times_s, self.ended = list[float](), threading.Event()
        params = SamplingParams(temperature=1.0, seed=len(prompt), max_tokens=tokens, ignore_eos=True)
        engine.submit(EngineRequest(prompt=prompt, params=params), self._take)

    def _take(self, events: list[EngineEvent]) -> None:
        now_s = time.perf_counter()
        for event in events:
            if isinstance(event, Delta):
                self.times_s.append(now_s)
                self.tokens += len(event.tokens)
            if isinstance(event, RequestFinished | RequestFailed):
                self.ended.set()


def measured(engine: EngineClient, vocabulary: int, given: argparse.Namespace, seed: int) -> dict[str, float]:
    """Of streams the time between two deltas and per token, of prompts that to the first token."""
    drawn = random.Random(seed)

    def prompt(tokens: int) -> tuple[int, ...]:
        return tuple(drawn.randrange(10, vocabulary) for _ in range(tokens))

    streams = [Reply(engine, prompt(16), given.tokens) for _ in range(given.streams)]
    firsts: list[float] = []
    while not all(one.ended.is_set() for one in streams):
        long = Reply(engine, prompt(given.prompt), 1)
        long.ended.wait()
        firsts.append(long.times_s[0] - long.began_s if long.times_s else float("nan"))
    gaps = sorted(
        later - sooner for one in streams for sooner, later in zip(one.times_s, one.times_s[1:], strict=False)
    )
    whole_s = max(one.times_s[-1] for one in streams) - min(one.began_s for one in streams)
    return {
        "gap_p50_s": gaps[len(gaps) // 2],
        "gap_p99_s": gaps[len(gaps) * 99 // 100],
        "tpot_worst_s": max((one.times_s[-1] - one.times_s[0]) / max(1, one.tokens - 1) for one in streams),
        "ttft_mean_s": sum(firsts) / len(firsts),
        "prompt_tok_s": len(firsts) * given.prompt / whole_s,
    }


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model", nargs="?", default="mini")
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--streams", type=int, default=4)
    options.add_argument("--tokens", type=int, default=300)
    options.add_argument("--prompt", type=int, default=1500)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    spawner = Spawner()
    for seed in range(given.rounds):
        for name, settings in WAYS.items():
            model = load(given.model, given.cores, settings, spawner)
            vocabulary = model.tokenizer.vocabulary_size
            given.prompt = min(given.prompt, model.context_length - 64)
            results[name].append(measured(model.engine, vocabulary, given, seed))
            model.close()
    spawner.close()
    table = {
        name: {key: sorted(one[key] for one in rows)[len(rows) // 2] for key in rows[0]}
        for name, rows in results.items()
    }
    print(json.dumps({"load": os.getloadavg()[0], **table}, indent=2))


if __name__ == "__main__":
    main()
