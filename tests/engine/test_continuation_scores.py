"""Log-probabilities of continuations: right, whatever chunks, pages and batch; the prompt is read once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.client import EngineClient
from headrace.engine.request import EngineRequest
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running, tiny_model

RANDOM = np.random.default_rng(11)
PROMPT = tuple(int(token) for token in RANDOM.integers(2, 128, 75))
LABELS = ((5,), (7, 8), (7, 9, 9), (7,), (5, 6, 7, 8, 9, 5, 6, 7), (7, 9), (5, 6, 7), (90, 91, 92))
Ids = tuple[int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LoadedModel]:
    loaded = load_model(str(folder), EngineOptions(cache_dir=None, max_num_seqs=32, max_batch_tokens=64))
    yield loaded
    loaded.close()


def start(engine: EngineClient, prompt: Ids, labels: tuple[Ids, ...]) -> Running:
    return Running(engine, EngineRequest(prompt=prompt, continuations=labels))


def scores(engine: EngineClient, prompt: Ids = PROMPT, labels: tuple[Ids, ...] = LABELS) -> Outcome:
    return start(engine, prompt, labels).finish()


def expected(engine: EngineClient, prompt: Ids, label: Ids) -> float:
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, ignore_eos=True)
    [found] = Running(engine, EngineRequest(prompt=prompt + label, params=params)).finish().prompts
    return sum(one.logprob for one in found.logprobs[-len(label) :])


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 75])
def test_they_are_the_sums_of_the_log_probabilities_of_tokens(model: LoadedModel, length: int) -> None:
    found = scores(model.engine, PROMPT[:length])
    wanted = [expected(model.engine, PROMPT[:length], label) for label in LABELS]
    assert found.continuations == pytest.approx(wanted, abs=1e-4)
    assert found.tokens == {} and found.ends[0].reason == "stop"


def test_the_prompt_is_counted_and_computed_once(folder: Path) -> None:
    labels = tuple((2 + number, 3, 4) for number in range(100))
    prompt = tuple(int(token) for token in RANDOM.integers(2, 128, 96))
    fresh = load_model(str(folder), EngineOptions(cache_dir=None, max_num_seqs=32, max_batch_tokens=64))
    try:
        done = scores(fresh.engine, prompt, labels).done.usage
        assert (done.prompt_tokens, done.completion_tokens, done.cached_tokens) == (96 + 300, 0, 0)
        # 80 tokens of full pages once, and for each label the 16 after them and 2 of its own, at 64 a step.
        assert fresh.engine.status().steps < 60
        assert scores(fresh.engine, prompt, labels).done.usage.cached_tokens == 80
    finally:
        fresh.close()


def test_chunks_batch_and_preemption_change_nothing(folder: Path, model: LoadedModel) -> None:
    alone = [scores(model.engine, PROMPT[i:]).continuations for i in range(4)]
    per_page = model.plan.kv_bytes // model.plan.page_count
    options = EngineOptions(cache_dir=None, max_num_seqs=4, max_batch_tokens=9, kv_cache_memory=per_page * 14)
    small = load_model(str(folder), options)
    try:
        generates = SamplingParams(max_tokens=90, temperature=0, ignore_eos=True)
        others = [
            Running(small.engine, EngineRequest(prompt=PROMPT[i + 9 :], params=generates)) for i in range(4)
        ]
        running = [start(small.engine, PROMPT[i:], LABELS) for i in range(4)]
        assert [one.finish().continuations for one in running] == alone
        assert all(len(one.finish().tokens[0]) == 90 for one in others)
        status = small.engine.status()
        assert status.available_pages == status.page_count
    finally:
        small.close()


def test_a_cancelled_request_ends_and_gives_its_pages_back(model: LoadedModel) -> None:
    running = start(model.engine, PROMPT, tuple((2 + i % 120, 2 + i // 120, 3) for i in range(900)))
    running.ticket.cancel()
    outcome = running.finish()
    assert outcome.ends[0].reason in ("cancelled", "stop")
    status = model.engine.status()
    assert (status.running, status.waiting) == (0, 0)


def test_what_cannot_be_scored_is_refused(model: LoadedModel) -> None:
    with pytest.raises(InvalidRequest, match="a continuation has no tokens"):
        start(model.engine, PROMPT, ((5,), ()))
    with pytest.raises(InvalidRequest, match="token 100000 is not in the vocabulary"):
        start(model.engine, PROMPT, ((100_000,),))
    with pytest.raises(ContextLengthExceeded):
        start(model.engine, PROMPT, ((5,) * 100_000,))
