"""The engine's own overhead per step: 32 sequences decoding on an executor that computes nothing.

    python bench/engine_step.py [--sequences 32] [--length 1000] [--steps 500]

Prints the microseconds between two executor runs: scheduling, page allocation, building the batch, sampling
over a small vocabulary, detokenization and events.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import numpy as np

from headrace import _native
from headrace.engine.engine import Engine, EngineLimits
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.executors.executor import ExecutorLimits
from headrace.kv.pages import PAGE_TOKENS
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import Sampler
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.weights.hub.bundled import list_bundled


class NullExecutor:
    """Returns the same logits for every row, and records the time between its calls."""

    def __init__(self, capacity: ExecutorLimits, vocabulary: int) -> None:
        self.capacity = capacity
        self.gaps_s: list[float] = []
        self._logits = np.zeros((capacity.max_rows, vocabulary), np.float32)
        self._logits[:, 300] = 1
        self._left_s = 0.0

    def run(self, step: Step) -> Array:
        if len(step.tokens) == len(step.rows) == self.capacity.max_rows:  # all decode
            self.gaps_s.append(time.perf_counter() - self._left_s)
        self._left_s = time.perf_counter()
        return self._logits[: len(step.rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=1000, help="prompt tokens of each sequence")
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args()
    tokenizer = load_tokenizer(list_bundled()["novelette"])
    total = asked.length + asked.steps
    pages = asked.sequences * -(-total // PAGE_TOKENS) + 8
    capacity = ExecutorLimits(
        max_tokens=512, max_rows=asked.sequences, page_count=pages, page_tokens=PAGE_TOKENS
    )
    executor = NullExecutor(capacity, tokenizer.vocabulary_size)
    sampler = Sampler(tokenizer.vocabulary_size, _native.Pool(1))
    limits = EngineLimits(context_length=total, max_num_seqs=asked.sequences)
    engine = Engine(executor, sampler, tokenizer, limits)
    ended = threading.Semaphore(0)

    def sink(events: list[EngineEvent]) -> None:
        if isinstance(events[-1], RequestFinished | RequestFailed):
            ended.release()

    params = SamplingParams(temperature=0, max_tokens=asked.steps, ignore_eos=True)
    for number in range(asked.sequences):
        prompt = tuple((number + i) % 1000 + 10 for i in range(asked.length))
        engine.submit(EngineRequest(prompt=prompt, params=params), sink)
    for _ in range(asked.sequences):
        ended.acquire()
    engine.close()
    gaps_us = [1e6 * gap for gap in executor.gaps_s[5:-5]]
    print(f"{asked.sequences} sequences of {asked.length} to {total} tokens, {len(gaps_us)} decode steps")
    print(f"engine per step: median {statistics.median(gaps_us):.0f} us, min {min(gaps_us):.0f} us, "
          f"90th percentile {statistics.quantiles(gaps_us, n=10)[-1]:.0f} us")  # fmt: skip


if __name__ == "__main__":
    main()
