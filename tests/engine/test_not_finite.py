"""Keys and values that are no numbers: the sequence that has them fails, typed, and no other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.request import EngineRequest, RequestFailed, RequestFinished
from headrace.errors import NumericalError
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from random_requests import answers_alone, load_with_pages
from tiny import NOT_FINITE, Running, not_finite_model

STEM = [10 + 7 * at % 80 for at in range(48)]  # three pages


def ask(seed: int, *, fails: bool = False) -> EngineRequest:
    """A text that begins as the others do, up to somewhere; the token of no numbers follows."""
    rng = random.Random(seed)
    tail = [rng.randrange(10, 90) for _ in range(6)]
    length = rng.randrange(3, len(STEM) + 1)
    params = SamplingParams(
        seed=seed,
        temperature=1.0,
        max_tokens=12,
        ignore_eos=True,
        logprobs=2,
        logit_bias={NOT_FINITE: -100.0},  # never drawn
    )
    return EngineRequest(prompt=(*STEM[:length], *([NOT_FINITE] if fails else []), *tail), params=params)


GOOD, BAD = [ask(seed) for seed in range(8)], [ask(seed, fails=True) for seed in range(20, 26)]


@pytest.mark.parametrize(
    ("golden", "part", "kept"),
    [
        ("llama3", "k", "f32"),
        ("llama2", "v", "bf16"),
        ("qwen3", "v", "int8"),
        ("llama3", "k", "k8v4"),
        ("qwen3", "k", "int4"),
        ("qwen3", "v", "int3"),
    ],
)
def test_that_sequence_alone_fails(tmp_path: Path, golden: str, part: str, kept: Any) -> None:
    """One after the other, and all at once: others share pages that were computed beside such a token."""
    folder = str(not_finite_model(tmp_path, golden, part))
    alone = answers_alone(folder, GOOD, kv_cache_dtype=kept, max_model_len=160)
    assert all(isinstance(outcome.terminal[0], RequestFinished) for outcome in alone)
    options = EngineOptions(
        threads=2, max_num_seqs=8, kv_cache_dtype=kept, max_model_len=160, max_batch_tokens=64
    )
    model, rng, hits = load_with_pages(folder, options, 40), random.Random(golden), 0
    for turn in range(4):
        asked = [*BAD, *GOOD]
        if turn:
            rng.shuffle(asked)
        running = [Running(model.engine, one) for one in asked]
        for request, one in zip(asked, running, strict=True):
            outcome = one.finish()
            if request in BAD:
                [failed] = outcome.terminal
                assert isinstance(failed, RequestFailed) and isinstance(failed.error, NumericalError)
            else:
                assert outcome.bits == alone[GOOD.index(request)].bits, request
                hits += outcome.done.usage.cached_tokens > 0
    assert hits
    model.close()
