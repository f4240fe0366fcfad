"""Decode steps by the type of keys and values: one sequence, and many at once, of one random model.

    python bench/kv_types.py [--length 8192] [--batch 16] [--layers 8] [--repeats 9] [--threads 2]

The model has the layers of Qwen2.5-0.5B (14 query heads over 2 of keys, 64 numbers each). Types take turns,
so that all see the machine in the same state; the median of each type is printed, and how many times faster
it is than bf16. Pages are filled by short texts: what is in them does not change how long a step takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from headrace import _native
from headrace.bench.random_checkpoint import RandomCheckpoint, no_tokenizer
from headrace.config.model_settings import KvCacheDtype
from headrace.executors.executor import Executor
from headrace.kv.pages import PAGE_TOKENS
from headrace.loading.engine_parts import load_weights, make_executor
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare_checkpoint
from headrace.program.step import Step

TYPES: tuple[KvCacheDtype, ...] = ("bf16", "int8", "k8v4", "int4", "int3")
CHUNK = 512
SHAPE: dict[str, object] = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=8192, help="keys of each sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences at once")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    executors = {kind: filled(kind, asked) for kind in TYPES}
    for batch in (1, asked.batch):
        step = decode_step(batch, asked.length)
        times: dict[KvCacheDtype, list[float]] = {kind: [] for kind in TYPES}
        for repeat in range(asked.repeats + 1):
            for kind, executor in executors.items():
                begin_s = time.perf_counter()
                executor.run(step)
                if repeat:
                    times[kind].append(time.perf_counter() - begin_s)
        base = statistics.median(times["bf16"])
        for kind, seconds in times.items():
            middle = statistics.median(seconds)
            print(
                f"{batch:3} x {asked.length:,} keys  {kind:5}  {middle * 1e3:8.2f} ms"
                f"  ({min(seconds) * 1e3:.2f} to {max(seconds) * 1e3:.2f})  {base / middle:5.2f} x bf16",
                flush=True,
            )


def filled(kind: KvCacheDtype, asked: argparse.Namespace) -> Executor:
    """An executor with every page written."""
    options = EngineOptions(
        quantization="int8",
        kv_cache_dtype=kind,
        threads=asked.threads,
        max_num_seqs=asked.batch,
        max_batch_tokens=CHUNK,
        speculative="off",
        cache_dir=None,
    )
    shape = {**SHAPE, "num_hidden_layers": asked.layers, "max_position_embeddings": asked.length}
    checkpoint = RandomCheckpoint(shape)
    prepared = prepare_checkpoint(checkpoint, options, "bench", Path("bench"), no_tokenizer(), None)
    pool = _native.Pool(asked.threads)
    executor = make_executor(prepared, options, pool, load_weights(prepared, options, pool))
    pages = asked.batch * pages_of(asked.length)
    for first in range(0, pages, pages_of(CHUNK)):
        count = min(pages_of(CHUNK), pages - first) * PAGE_TOKENS
        positions = np.arange(count, dtype=np.int32)
        executor.run(
            Step(
                tokens=(positions * 7 + first) % 8000,
                positions=positions,
                slots=positions + first * PAGE_TOKENS,
                query_starts=np.array([0, count], np.int32),
                lengths=np.array([count], np.int32),
                block_tables=np.arange(first, first + pages_of(count), dtype=np.int32)[None],
                rows=np.array([count - 1], np.int32),
                state_slots=np.zeros(1, np.int32),
            )
        )
    return executor


def decode_step(batch: int, length: int) -> Step:
    """One token more for each of `batch` sequences, whose pages lie one after another."""
    tables = np.arange(batch * pages_of(length), dtype=np.int32).reshape(batch, -1)
    positions = np.full(batch, length - 1, np.int32)
    return Step(
        tokens=np.arange(batch, dtype=np.int32),
        positions=positions,
        slots=(tables[:, -1] * PAGE_TOKENS + positions % PAGE_TOKENS).astype(np.int32),
        query_starts=np.arange(batch + 1, dtype=np.int32),
        lengths=np.full(batch, length, np.int32),
        block_tables=tables,
        rows=np.arange(batch, dtype=np.int32),
        state_slots=np.arange(batch, dtype=np.int32),
    )


def pages_of(tokens: int) -> int:
    """Pages for so many tokens."""
    return -(-tokens // PAGE_TOKENS)


if __name__ == "__main__":
    main()
