"""The golden checkpoints of tests/goldens, and a driver that runs one sequence on any executor."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from msgspec import Struct
from safetensors.numpy import load_file

from headrace import _native
from headrace.executors.executor import Executor, ExecutorLimits
from headrace.executors.native import NativeExecutor
from headrace.executors.reference import ReferenceExecutor
from headrace.kv.pages import PAGE_TOKENS
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import encoder_types, find_model
from headrace.ops.value import Array, Ints
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.step import Step
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.packing.packed_weights import WeightSpec, load_packed

FOLDER = Path(__file__).parent / "goldens"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))
PAGES_PER_SEQUENCE = 8
CAPACITY = ExecutorLimits(
    max_tokens=64,
    max_rows=64,
    page_count=3 * PAGES_PER_SEQUENCE,
    page_tokens=PAGE_TOKENS,
    state_slots=3 * PAGES_PER_SEQUENCE,
)


class Golden(Struct, frozen=True, eq=False):
    """A recorded checkpoint with its weights in float32 and what `transformers` computes from it."""

    program: Program
    weights: dict[str, Array]
    prompt: Ints
    logits: Array
    greedy: Ints


def encoders_only() -> set[str]:
    """Model types that cannot generate."""
    modules = {name: importlib.import_module(f"headrace.models.{name}") for name in encoder_types()}
    return {name for name, module in modules.items() if not hasattr(module, "define")}


def load_golden(name: str) -> Golden:
    with open_checkpoint(FOLDER / name) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        parts = ProgramWeights(checkpoint, program)
        weights = {name: parts.float32(name) for name in program.weights}
    truth = load_file(FOLDER / name / "golden.safetensors")
    return Golden(program, weights, truth["prompt"], truth["logits"], truth["greedy"])


class Chunk(Struct, frozen=True, eq=False):
    """New tokens of a sequence that has `cached` tokens already; `pages` are the sequence's own, and
    the lowest of them also numbers its state slot."""

    tokens: Ints
    cached: int
    pages: Ints


def make_step(*chunks: Chunk) -> Step:
    """One ragged step of all chunks, with logits for every row."""
    positions = [np.arange(c.cached, c.cached + len(c.tokens)) for c in chunks]
    slots = [
        c.pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS
        for c, p in zip(chunks, positions, strict=True)
    ]
    counts = [len(c.tokens) for c in chunks]
    return Step(
        tokens=np.concatenate([c.tokens for c in chunks]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_starts=np.cumsum([0, *counts]).astype(np.int32),
        lengths=np.array([c.cached + n for c, n in zip(chunks, counts, strict=True)], np.int32),
        block_tables=np.stack([c.pages for c in chunks]).astype(np.int32),
        rows=np.arange(sum(counts), dtype=np.int32),
        state_slots=np.array([c.pages.min() for c in chunks], np.int32),
    )


def scattered_pages(sequence: int) -> Ints:
    """Pages of one of up to three sequences: interleaved and backwards, so that wrong tables are seen."""
    return np.arange(PAGES_PER_SEQUENCE, dtype=np.int32)[::-1] * 3 + sequence


def run_greedy(executor: Executor, golden: Golden) -> tuple[Array, list[int]]:
    """Logits [24, V] of the prompt in one step, and as many greedy tokens as the golden has."""
    pages = scattered_pages(0)
    logits = executor.run(make_step(Chunk(golden.prompt, 0, pages))).copy()
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < len(golden.greedy):
        cached = len(golden.prompt) + len(tokens) - 1
        last = np.array(tokens[-1:], np.int32)
        tokens.append(int(executor.run(make_step(Chunk(last, cached, pages)))[-1].argmax()))
    return logits, tokens


def relative_error(got: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest expected magnitude."""
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def executor_for(kind: str, program: Program, parts: ProgramWeights, *, threads: int = 2) -> Executor:
    """The executor "numpy", "torch" or "native" of a program with its weights in float32."""
    weights = {weight: parts.float32(weight) for weight in program.weights}
    if kind == "numpy":
        return ReferenceExecutor(program, weights, CAPACITY)
    if kind == "torch":
        pytest.importorskip("torch")
        from headrace.executors.torch_executor import TorchExecutor

        return TorchExecutor(program, weights, CAPACITY, device="cpu")
    pool = _native.Pool(threads)
    wanted = tuple(
        WeightSpec(n, *map(int, v.shape), "f32") for n, v in program.weights.items() if len(v.shape) == 2
    )
    matrices = load_packed(parts, wanted, pool, cache=None)
    vectors = {n: weights[n] for n, v in program.weights.items() if len(v.shape) != 2}
    return NativeExecutor(program, matrices, vectors, CAPACITY, pool=pool, kv_type="f32", poison=True)
