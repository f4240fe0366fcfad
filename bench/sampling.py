"""Cost of sampling a step: 32 rows of a 151,936-token vocabulary, milliseconds, median of repeats."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from headrace import _native
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import Sampler, SamplerState

VOCABULARY = 151_936
CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "temperature 0.8, top_k 50, top_p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "temperature 0.8, top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "temperature 0.8, top_k 2000": SamplingParams(temperature=0.8, top_k=2000),
    "temperature 0.8, min_p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "temperature 0.8, three penalties": SamplingParams(
        temperature=0.8, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.2
    ),
    "temperature 0.8, typical_p 0.9": SamplingParams(temperature=0.8, typical_p=0.9),
    "temperature 0.8, top_n_sigma 1": SamplingParams(temperature=0.8, top_n_sigma=1.0),
    "temperature 0.8, min_p 0.05, xtc": SamplingParams(temperature=0.8, min_p=0.05, xtc_probability=0.5),
    "dynamic temperature": SamplingParams(temperature=0.8, dynatemp_range=0.5),
    "mirostat 1": SamplingParams(mirostat=1),
    "mirostat 2": SamplingParams(mirostat=2),
    "temperature 0.8, logprobs 20": SamplingParams(temperature=0.8, logprobs=20),
}


def make_logits(rows: int, *, peaked: bool) -> np.ndarray:
    """Normal noise with standard deviation 3; if `peaked`, 30 tokens per row are 12 higher, as in models."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((rows, VOCABULARY)) * 3).astype(np.float32)
    if peaked:
        for row in logits:
            row[rng.integers(0, VOCABULARY, 30)] += 12
    return logits


def step_ms(sampler: Sampler, params: SamplingParams, logits: np.ndarray, repeats: int) -> float:
    """Median over repeats, without the time to write the logits."""
    rows = [SamplerState(params, 1, i, range(1000), []) for i in range(len(logits))]
    times_s: list[float] = []
    for _ in range(repeats):
        scratch = logits.copy()
        start = time.perf_counter()
        tokens = sampler.sample(scratch, rows).tokens.tolist()
        times_s.append(time.perf_counter() - start)
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
    return 1e3 * statistics.median(times_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=25)
    args = parser.parse_args()
    sampler = Sampler(VOCABULARY, _native.Pool(args.threads))
    print(f"{args.rows} rows of {VOCABULARY:,}, {args.threads} threads, {_native.isa()}")
    print(f"{'':40}{'flat ms':>9}{'peaked ms':>11}")
    flat, peaked = make_logits(args.rows, peaked=False), make_logits(args.rows, peaked=True)
    for name, params in CASES.items():
        times = [step_ms(sampler, params, logits, args.repeats) for logits in (flat, peaked)]
        print(f"{name:40}{times[0]:9.2f}{times[1]:11.2f}")
    # With a vocabulary of 1 there is nothing to compute: this measures Python's overhead.
    tiny, nothing = Sampler(1, _native.Pool(1)), np.zeros((args.rows, 1), np.float32)
    print(f"{'Python overhead':40}{step_ms(tiny, CASES['greedy'], nothing, 400):9.3f}")


if __name__ == "__main__":
    main()
