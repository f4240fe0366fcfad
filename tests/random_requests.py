"""Random requests for tests of exactness, and models with few pages."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blocks import block_model
from headrace.engine.request import EngineRequest
from headrace.executors.executor import ExecutorLimits
from headrace.grammar.constraint import Constraint
from headrace.kv.pages import PAGE_TOKENS
from headrace.loading import memory_plan as plans
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.memory_plan import MemoryPlan
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running, tiny_model

VOCABULARY = 90  # of the smallest of the golden models
# What few requests ask for: each goes through state of its own from token to token.
_MORE: list[dict[str, Any]] = [
    *[{}] * 6,
    {"mirostat": 2, "mirostat_tau": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ("!",)},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"presence_penalty": 0.7, "repeat_last_n": 6},
    {"min_tokens": 5, "max_tokens": 24, "stop": ("0", "ab")},
    {"banned_strings": ("1", "!!")},
    {"bad_words": ("2", "#$")},
]
CONSTRAINTS = [
    Constraint("regex", "(%[0-9]+&){2,5}'forced_text'[!-9]*"),
    Constraint("choice", '["!!!!!!", "0123456789", "012"]'),
    Constraint("lark", 'start: pair+\npair: "<" /[0-9]+/ ">" ":::::"'),
    Constraint("regex", "[0-9]{3}//////////[0-9]{3}", after="7"),
]


def random_request(rng: random.Random, stems: list[list[int]]) -> EngineRequest:
    stem = rng.choice(stems)
    prompt = stem[: rng.randint(1, len(stem))] + [
        rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 30))
    ]
    given = dict[str, Any](
        temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
        top_k=rng.choice([0, 0, 5, 40]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        frequency_penalty=rng.choice([0.0, 0.5]),
        seed=rng.randrange(2**63),
        n=rng.choice([1, 1, 1, 3]),
        max_tokens=rng.randint(1, 24),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, 0, 3]),
    )
    more = rng.choice(_MORE)
    params = SamplingParams(**given | more)
    constraint = rng.choice([None, *CONSTRAINTS])
    if "bad_words" in more or "banned_strings" in more:
        constraint = None  # together they may leave nothing to draw, and a request may fail
    return EngineRequest(prompt=tuple(prompt), params=params, cache=rng.random() < 0.8, constraint=constraint)


def small_model(folder: Path, golden: str) -> str:
    """Where the golden model of that name now is; `Q6_K.gguf` is one of blocks of that type."""
    made = block_model(folder, golden[:-5]) if golden.endswith(".gguf") else tiny_model(folder, golden)
    return str(made)


def answers_alone(folder: str, requests: list[EngineRequest], **options: Any) -> list[Outcome]:
    """What each request gives alone, on one thread, token by token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.engine.multi_step.MAX_STEPS", 1)
        model = load_model(folder, EngineOptions(threads=1, max_num_seqs=1, **options))
        outcomes = [Running(model.engine, one).finish() for one in requests]
        model.close()
    return outcomes


def load_with_pages(folder: str, options: EngineOptions, pages: int) -> LoadedModel:
    """The model with so many pages of the usual size. One without keys and values would get a page as long as
    the context for every sequence, and never be preempted."""

    def capacity_of(plan: MemoryPlan, options: EngineOptions) -> ExecutorLimits:
        return replace(plans.capacity_of(plan, options), page_count=pages, page_tokens=PAGE_TOKENS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.loading.engine_parts.capacity_of", capacity_of)
        return load_model(folder, options)
