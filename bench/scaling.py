"""Cost of self-consistency: a majority vote over several samples, compared with one sample.

    python bench/scaling.py [MODEL | --config config.json] [--weights int4] [--samples 8] [--prompt 1024]
        [--generate 128] [--rounds 5]

Alternates between one sample, a vote without early stopping, and a vote in which samples end at different
lengths and agree. Prompts are random and never cached. Prints the medians in seconds, the ratios to one
sample, and how many tokens early stopping saved.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import time
from pathlib import Path

import numpy as np

from headrace.bench.workload import Workload, prepare_workload
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.engine.scaling.options import Scaling, Vote
from headrace.loading.loader import start
from headrace.loading.options import EngineOptions
from headrace.sampling.params import MAX_STOP_TOKEN_IDS, SamplingParams

NO_EARLY_STOP = Scaling(vote=Vote("function", function=lambda text: None))
AGREED = Scaling(vote=Vote("function", function=lambda text: "the same"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--config", type=Path, help="a config.json, run with random weights")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens")
    parser.add_argument("--generate", type=int, default=128, help="tokens of a sample; with ends, on average")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    workload = Workload(
        model=asked.model, config=asked.config, prompt=asked.prompt, generate=asked.generate, batch=1
    )
    options = EngineOptions(
        weights=asked.weights,
        max_sequences=asked.samples,
        context=asked.prompt + 4 * asked.generate,
    )
    prepared = prepare_workload(workload, options)
    model = start(prepared, options)
    try:
        report(model, prepared.model.config.vocabulary, asked)
    finally:
        model.close()


def report(model: LoadedModel, vocabulary: int, asked: argparse.Namespace) -> None:
    """Run the rounds, after a warm-up round, and print the results."""
    rng = np.random.default_rng(1)
    count = min(max(1, vocabulary // asked.generate), MAX_STOP_TOKEN_IDS)
    ends = tuple(rng.choice(vocabulary, count, replace=False).tolist())
    n, generate = asked.samples, asked.generate
    runs: dict[str, tuple[Scaling | None, dict[str, object]]] = {
        "one sample": (None, {"n": 1, "max_tokens": generate}),
        "vote, no early stopping": (NO_EARLY_STOP, {"n": n, "max_tokens": generate}),
        "samples that end": (None, {"n": n, "max_tokens": 4 * generate, "stop_token_ids": ends}),
        "their vote": (AGREED, {"n": n, "max_tokens": 4 * generate, "stop_token_ids": ends}),
    }
    times_s: dict[str, list[float]] = {name: [] for name in runs}
    tokens: dict[str, int] = dict.fromkeys(runs, 0)
    for number in range(asked.rounds + 1):
        prompt = tuple(rng.integers(0, vocabulary, asked.prompt).tolist())
        for name, (scaling, sampling) in runs.items():
            time_s, generated = run(model, prompt, number, scaling, sampling)
            if number:
                times_s[name].append(time_s)
                tokens[name] += generated
    one_s = statistics.median(times_s["one sample"])
    print(f"{n} samples, {asked.prompt:,} tokens of prompt, {generate:,} generated; {asked.rounds} rounds")
    for name, found in times_s.items():
        median_s = statistics.median(found)
        each = tokens[name] / asked.rounds
        print(f"{name:22} {median_s:7.3f} s  {median_s / one_s:5.2f} x one sample  {each:7.1f} tokens")
    saved = 1 - tokens["their vote"] / tokens["samples that end"]
    print(f"stopping those that could not matter saved {saved:.0%} of the tokens of samples that end")


def run(
    model: LoadedModel,
    prompt: tuple[int, ...],
    seed: int,
    scaling: Scaling | None,
    sampling: dict[str, object],
) -> tuple[float, int]:
    """Duration of a request in seconds, and its generated tokens."""
    params = SamplingParams(seed=seed, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    arrived: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
    begin_s = time.perf_counter()
    model.engine.submit(
        EngineRequest(prompt=prompt, params=params, cache=False, scaling=scaling), arrived.put
    )
    while True:
        last = arrived.get()[-1]
        if isinstance(last, RequestFailed):
            raise last.error
        if isinstance(last, RequestFinished):
            return time.perf_counter() - begin_s, last.usage.completion_tokens


if __name__ == "__main__":
    main()
