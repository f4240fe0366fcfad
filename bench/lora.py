"""What adapters cost: processor time of decode steps of 16 streams over 8 adapters, beside steps without any.

    python bench/lora.py MODEL [--rank 8] [--quantization int4] [--threads 1] [--rounds 40]

Random adapters of all seven matrices. Steps with and without adapters alternate; the ratio is of the
processor time of the whole process, medians of rounds. The model needs no tokens: its prompts are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
from msgspec.structs import replace

from headrace import _native
from headrace.executors.adapters import Adapter
from headrace.loading.engine_parts import load_weights, make_executor
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.ops.value import Ints
from headrace.program.program import Program
from headrace.program.step import Step
from headrace.weights.adapters.adapter_file import LoraMatrices

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def random_adapter(program: Program, rank: int, seed: int, matrices: tuple[str, ...]) -> Adapter:
    """An adapter of these matrices in every layer."""
    rng = np.random.default_rng(seed)
    found: dict[str, LoraMatrices] = {}
    for name, value in program.weights.items():
        if len(value.shape) == 2 and any(f".{one}." in name for one in matrices):
            n, k = (int(size) for size in value.shape)
            a = rng.normal(size=(rank, k)).astype(np.float32) / np.sqrt(k, dtype=np.float32)
            found[name] = LoraMatrices(a, 0.01 * rng.normal(size=(n, rank)).astype(np.float32), 2.0)
    return Adapter(found)


def decode_step(streams: int, length: int, page_tokens: int, vocabulary: int) -> Step:
    """One token of each stream after `length` others."""
    pages = -(-(length + 1) // page_tokens)
    tables = np.arange(streams * pages, dtype=np.int32).reshape(streams, pages)
    where = tables[:, length // page_tokens] * page_tokens + length % page_tokens
    ints = np.arange(streams, dtype=np.int32)
    rng = np.random.default_rng(1)
    return Step(
        tokens=rng.integers(0, vocabulary, streams).astype(np.int32),
        positions=np.full(streams, length, np.int32),
        slots=where.astype(np.int32),
        query_starts=np.arange(streams + 1, dtype=np.int32),
        lengths=np.full(streams, length + 1, np.int32),
        block_tables=tables,
        rows=ints,
        state_slots=ints,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--matrices", default=",".join(MATRICES))
    given = parser.parse_args()
    options = EngineOptions(
        quantization=given.quantization,
        threads=given.threads,
        max_num_seqs=given.streams,
        speculative="off",
        max_model_len=512,
    )
    with prepare(given.model, options) as planned:
        pool = _native.Pool(given.threads)
        executor = make_executor(planned, options, pool, load_weights(planned, options, pool))
        program = planned.program
        vocabulary = planned.model.config.vocabulary
        page_tokens = planned.plan.page_tokens
    matrices = tuple(given.matrices.split(","))
    for slot in range(given.adapters):
        executor.set_adapter(slot, random_adapter(program, given.rank, slot, matrices))
    plain = decode_step(given.streams, given.length, page_tokens, vocabulary)
    slots: Ints = (np.arange(given.streams) % given.adapters).astype(np.int32)
    steps = {"plain": plain, "adapters": replace(plain, adapters=slots)}
    for step in steps.values():
        executor.run(step)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(given.rounds):
        for name, step in steps.items():
            began = time.process_time()
            executor.run(step)
            seconds[name].append(time.process_time() - began)
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    report = {
        "model": planned.name,
        "isa": _native.isa(),
        **{f"{name}_ms": round(1e3 * statistics.median(found), 3) for name, found in seconds.items()},
        "least_ratio": round(min(seconds["adapters"]) / min(seconds["plain"]), 4),
        "ratio": round(statistics.median(ratios), 4),
        "rank": given.rank,
        "matrices": len(matrices),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
