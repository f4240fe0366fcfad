"""The determinism contract: a request's bytes depend on its weights, prompt, parameters and seed alone.

Each trial runs a random mix of requests, in a random order, on an engine with a random thread count, chunk
size, page count (from ample to so few that sequences are preempted) and a prefix cache in whatever state the
trials before left it; every answer must equal, bit for bit, what the request gives alone on one thread.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.request import EngineRequest
from headrace.executors.kv_layers import KvLayers
from headrace.loading.loader import LoadedModel
from headrace.loading.model_record import ModelRecord, write_record
from headrace.loading.options import EngineOptions
from random_requests import VOCABULARY, answers_alone, load_with_pages, random_request, small_model
from tiny import Running

TRIALS = int(os.environ.get("TEST_EXACT_TRIALS", "1500"))  # 3,000 by `make nightly`


def long(*case: str) -> Any:
    return pytest.param(case, marks=pytest.mark.nightly)


CASES = [  # golden, weights, keys and values
    long("llama3", "keep", "auto"),
    long("qwen3", "bf16", "auto"),
    ("mistral_window", "int8", "auto"),
    ("llama_odd", "int4", "auto"),
    long("gemma2", "int8", "auto"),
    ("qwen3_moe_mixed", "int4", "auto"),
    long("Q4_0.gguf", "keep", "auto"),
    ("Q6_K.gguf", "keep", "auto"),
    ("mamba2_groups", "int8", "auto"),
    ("deepseek_v3", "int8", "auto"),
    long("gpt_oss", "keep", "auto"),
    ("qwen3", "int8", "int8"),
    ("gpt_oss", "keep", "k8v4"),
    ("mistral_window", "bf16", "int4"),
    ("qwen3", "int8", "int3"),
    ("gpt_oss", "keep", "mixed"),
]
MIXED = KvLayers(bits=((3, 4), (8, 8), (4, 3)))  # of the layers of gpt_oss
REQUESTS = 40


@dataclass(frozen=True, slots=True)
class Engines:
    """The same model on differently shaped engines, and what every request gives alone."""

    shaped: list[LoadedModel]
    requests: list[EngineRequest]
    alone: list[tuple[object, ...]]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    golden, weights, kept = request.param
    folder = small_model(tmp_path_factory.mktemp("model"), golden)
    if kept == "mixed":
        write_record(Path(folder), ModelRecord(kv=MIXED))
    rng = random.Random(golden)
    stems = [[rng.randrange(VOCABULARY) for _ in range(90)] for _ in range(4)]
    requests = [random_request(rng, stems) for _ in range(REQUESTS)]
    alone = answers_alone(folder, requests, quantization=weights, kv_cache_dtype=kept, max_batch_tokens=256)
    shaped = [
        load_with_pages(
            folder,
            EngineOptions(
                quantization=weights,
                kv_cache_dtype=kept,
                threads=threads,
                max_num_seqs=sequences,
                max_batch_tokens=budget,
                max_model_len=160,
            ),
            pages,
        )
        for threads, sequences, budget, pages in [
            (1, 8, 8, 400),
            (2, 16, 16, 40),
            (3, 4, 7, 14),
            (2, 32, 64, 24),
            (2, 12, 200, 400),
            (4, 6, 33, 18),
        ]
    ]
    yield Engines(shaped, requests, [outcome.bits for outcome in alone])
    for model in shaped:
        model.close()


def test_bits_do_not_depend_on_company(engines: Engines, request: pytest.FixtureRequest) -> None:
    rng = random.Random(request.node.name)
    trials, preemptible, hits = TRIALS // len(CASES), 0, 0
    for _ in range(trials):
        model = rng.choice(engines.shaped)
        picked = [rng.randrange(REQUESTS) for _ in range(rng.randint(1, 10))]
        running: list[Running] = []
        for index in picked:
            running.append(Running(model.engine, engines.requests[index]))
            if rng.random() < 0.3:
                running[0].next() if not running[0].outcome.terminal else None
        for index, one in zip(picked, running, strict=True):
            outcome = one.finish()
            assert outcome.bits == engines.alone[index], engines.requests[index]
            hits += outcome.done.usage.cached_tokens > 0
        preemptible += model.engine.status().page_count < 50
    recurrent = engines.shaped[0].plan.state_bytes > 0
    assert recurrent or hits > trials // 3, "the trials hardly ever hit the prefix cache"
    assert not recurrent or not hits, "a prefix was taken without its state"
    assert preemptible > trials // 3, "the trials hardly ever ran short of pages"
