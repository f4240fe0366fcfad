"""Log-probabilities of prompts: right, whatever the chunks, the batch, the cache and preemption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.engine import Engine
from headrace.engine.request import EngineRequest, TokenLogprob
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Running, tiny_model

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(2, 128, 75))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LoadedModel]:
    loaded = load_model(str(folder), EngineOptions(cache_dir=None, max_num_seqs=32, max_batch_tokens=64))
    yield loaded
    loaded.close()


def scored(engine: Engine, prompt: tuple[int, ...] = PROMPT, **sampling: object) -> Running:
    params = SamplingParams(
        **({"temperature": 0, "max_tokens": 3, "prompt_logprobs": 4, "ignore_eos": True} | sampling)  # type: ignore[arg-type]
    )
    return Running(engine, EngineRequest(prompt=prompt, params=params))


def logprobs(running: Running) -> tuple[TokenLogprob, ...]:
    [event] = running.finish().prompts
    return event.logprobs


def test_they_are_those_of_sampling_token_by_token(model: LoadedModel) -> None:
    found = logprobs(scored(model.engine))
    assert [entry.token for entry in found] == list(PROMPT[1:])
    for place in (1, 2, 17, 40, 74):
        allowed = {
            "allowed_token_ids": (PROMPT[place],),
            "max_tokens": 1,
            "logprobs": 4,
            "prompt_logprobs": None,
        }
        [expected] = scored(model.engine, PROMPT[:place], **allowed).finish().logprobs[0]
        entry = found[place - 1]
        assert (entry.token, entry.logprob, entry.top) == (expected.token, expected.logprob, expected.top)
        likelier = [token for token, value in entry.top if value > entry.logprob]
        assert entry.rank == len(likelier) + 1 or entry.rank > 4


def test_they_change_nothing_else_and_need_no_room(model: LoadedModel) -> None:
    plain = scored(model.engine, prompt_logprobs=None, n=3, temperature=1, seed=1).finish()
    assert plain.prompts == []
    several = scored(model.engine, n=3, temperature=1, seed=1).finish()
    assert several.tokens == plain.tokens
    assert several.prompts[0].logprobs == logprobs(scored(model.engine))
    assert several.done.usage.cache_miss_reason == "scored"
    assert logprobs(scored(model.engine, (5,))) == ()


def test_chunks_batch_and_preemption_change_no_bit(folder: Path, model: LoadedModel) -> None:
    alone = [logprobs(scored(model.engine, PROMPT[i:])) for i in range(8)]
    per_page = model.plan.kv_bytes // model.plan.page_count
    options = EngineOptions(cache_dir=None, max_num_seqs=4, max_batch_tokens=9, kv_cache_memory=per_page * 18)
    small = load_model(str(folder), options)
    try:
        running = [
            scored(small.engine, PROMPT[i:], max_tokens=90, prompt_logprobs=4 if i % 3 else None)
            for i in range(8)
        ]
        outcomes = [one.finish() for one in running]
        assert small.engine.status().preemptions > 0
        for i, outcome in enumerate(outcomes):
            assert [event.logprobs for event in outcome.prompts] == ([alone[i]] if i % 3 else [])
    finally:
        small.close()
