"""The engine's promises: one terminal event, pages back, errors at the door, sharing, deadlines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed
from headrace.errors import (
    ContextLengthExceeded,
    CorruptFile,
    DeadlineExceeded,
    EngineStopped,
    InvalidRequest,
    OutOfMemory,
    Overloaded,
    UnsupportedModel,
    UsageError,
)
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Running, tiny_model

LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(folder: Path) -> Iterator[LoadedModel]:
    loaded = load_model(str(folder), EngineOptions(max_num_seqs=8, max_batch_tokens=64))
    yield loaded
    loaded.close()


def wait_for_steps(model: LoadedModel, count: int) -> None:
    """Let the loop make `count` further steps by running a request of that many tokens."""
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    Running(model.engine, EngineRequest(prompt=(5,), params=params, cache=False)).finish()


def test_cancel_gives_pages_back_within_a_step(model: LoadedModel) -> None:
    running = [
        Running(model.engine, EngineRequest(prompt=(7, 8, i), params=LONG, cache=False)) for i in range(8)
    ]
    for one in running:
        one.next()
    assert model.engine.status().available_pages < model.plan.page_count
    for one in running:
        one.ticket.cancel()
    outcomes = [one.finish() for one in running]
    assert all(outcome.ends[0].reason == "cancelled" for outcome in outcomes)
    # The events of a cancel are sent after its pages are free: no step lies between.
    assert model.engine.status().available_pages == model.plan.page_count


def test_a_held_request_waits_and_loses_nothing(model: LoadedModel) -> None:
    params = SamplingParams(seed=5, max_tokens=300, n=2, ignore_eos=True)
    alone = Running(model.engine, EngineRequest(prompt=(7, 8), params=params)).finish()
    paused = Running(model.engine, EngineRequest(prompt=(7, 8), params=params, cache=False))
    paused.next()
    paused.ticket.pause(True)
    wait_for_steps(model, 3)
    status = model.engine.status()
    assert (status.running, status.waiting, status.available_pages) == (0, 0, model.plan.page_count)
    wait_for_steps(model, 3)
    assert model.engine.status().steps == status.steps + 3  # of the other request
    paused.ticket.pause(False)
    assert paused.finish().tokens == alone.tokens


def test_the_deadline_of_a_held_request_passes(model: LoadedModel) -> None:
    paused = Running(model.engine, EngineRequest(prompt=(7, 8), params=LONG, deadline_s=0.2))
    paused.ticket.pause(True)
    paused.ticket.pause(True)
    [failed] = paused.finish().terminal
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, DeadlineExceeded)


def test_cancel_of_a_waiting_a_finished_and_an_unknown_request(model: LoadedModel) -> None:
    busy = [Running(model.engine, EngineRequest(prompt=(7,), params=LONG)) for _ in range(8)]
    waiting = Running(model.engine, EngineRequest(prompt=(7, 9), params=LONG))
    waiting.ticket.cancel()
    assert waiting.finish().ends[0].reason == "cancelled"
    waiting.ticket.cancel()
    for one in busy:
        one.ticket.cancel()
        one.finish()
        one.ticket.cancel()
    wait_for_steps(model, 2)
    assert model.engine.status().running == 0


def test_sixty_four_streams_each_end_exactly_once(model: LoadedModel) -> None:
    params = [SamplingParams(seed=i, max_tokens=5 + i % 20, n=1 + i % 3) for i in range(64)]
    running = [
        Running(model.engine, EngineRequest(prompt=tuple(range(2, 4 + i)), params=p))
        for i, p in enumerate(params)
    ]
    for one, asked in zip(running, params, strict=True):
        outcome = one.finish()
        assert len(outcome.ends) == asked.n
        assert outcome.done.usage.completion_tokens == sum(map(len, outcome.tokens.values()))
    wait_for_steps(model, 1)
    assert model.engine.status().available_pages == model.plan.page_count
    assert all(one.outcome.terminal and len(one.outcome.terminal) == 1 for one in running)


def test_choices_share_the_prompts_pages(model: LoadedModel) -> None:
    prompt = tuple(2 + i % 90 for i in range(100))  # six full pages and four tokens
    running = Running(
        model.engine, EngineRequest(prompt=prompt, params=SamplingParams(n=8, max_tokens=64, seed=1))
    )
    while len(running.outcome.tokens) < 8:
        running.next()
    used = model.plan.page_count - model.engine.status().available_pages
    assert used <= 6 + 8 * 6  # alone each would need the six, too
    assert len(set(map(tuple, running.finish().tokens.values()))) > 1


def test_prefix_hits_and_their_reasons(model: LoadedModel) -> None:
    short = SamplingParams(temperature=0, max_tokens=2)
    prompt = tuple(2 + i % 90 for i in range(70))

    def ask(prompt: tuple[int, ...], **more: object) -> tuple[int, str | None]:
        usage = Running(model.engine, EngineRequest(prompt=prompt, params=short, **more)).finish().done.usage
        return usage.cached_tokens, usage.cache_miss_reason

    assert ask(prompt) == (0, "cold")
    assert ask(prompt) == (64, None)
    assert ask(prompt, cache_salt="another key") == (0, "cold")
    assert ask(prompt[:40] + (9,) * 30) == (32, "diverged")
    assert ask(prompt, cache=False) == (0, "disabled")


def test_errors_at_the_door(model: LoadedModel) -> None:
    def refused(kind: type[Exception], match: str, **changes: object) -> None:
        fields: dict[str, object] = {"prompt": (5, 6), **changes}
        with pytest.raises(kind, match=match):
            model.engine.submit(EngineRequest(**fields), lambda events: None)

    refused(InvalidRequest, "no tokens", prompt=())
    refused(InvalidRequest, "token 128 is not in the vocabulary of 128", prompt=(128,))
    refused(InvalidRequest, "logit_bias: token 999", params=SamplingParams(logit_bias={999: 1.0}))
    refused(InvalidRequest, "stop_token_ids: token 500", params=SamplingParams(stop_token_ids=(500,)))
    refused(InvalidRequest, "deadline_s is -1", deadline_s=-1)
    refused(InvalidRequest, "priority is 101", priority=101)
    refused(ContextLengthExceeded, r"prompt has 512 tokens, the limit is 512", prompt=(5,) * 512)
    refused(ContextLengthExceeded, "max_tokens is 511", params=SamplingParams(max_tokens=511))
    assert model.engine.status().steps == 0


def test_a_full_context_ends_with_length(model: LoadedModel) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True)
    outcome = Running(model.engine, EngineRequest(prompt=(5,) * 500, params=params)).finish()
    assert len(outcome.tokens[0]) == 12
    assert outcome.ends[0].reason == "length"


def test_a_deadline_ends_a_request(model: LoadedModel) -> None:
    running = Running(model.engine, EngineRequest(prompt=(5,), params=LONG, deadline_s=1e-6))
    [failed] = running.finish().terminal
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, DeadlineExceeded)
    assert model.engine.status().available_pages == model.plan.page_count


def test_an_overfull_queue_refuses(folder: Path) -> None:
    model = load_model(str(folder), EngineOptions(max_num_seqs=1, max_batch_tokens=8))
    accepted = 0
    with pytest.raises(Overloaded, match="sequences are queued"):
        while True:
            Running(model.engine, EngineRequest(prompt=(5,), params=SamplingParams(n=128, max_tokens=400)))
            accepted += 1
    assert accepted == (4096 + 1) // 128
    model.close()


def test_closing_fails_what_is_running_and_refuses_what_comes(folder: Path) -> None:
    model = load_model(str(folder), EngineOptions())
    running = Running(model.engine, EngineRequest(prompt=(5,), params=LONG))
    model.close()
    [terminal] = running.finish().terminal
    assert isinstance(terminal, RequestFailed)
    assert isinstance(terminal.error, EngineStopped)
    with pytest.raises(EngineStopped):
        model.engine.submit(EngineRequest(prompt=(5,)), lambda events: None)


def test_a_failing_sink_hurts_nobody_else(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def sink(events: list[EngineEvent]) -> None:
        called.set()
        raise RuntimeError("client bug")

    model.engine.submit(EngineRequest(prompt=(5,), params=SamplingParams(max_tokens=3)), sink)
    outcome = Running(model.engine, EngineRequest(prompt=(6,), params=SamplingParams(max_tokens=9))).finish()
    assert called.is_set()
    assert outcome.done
    assert "a sink failed" in caplog.text


def test_stop_strings_stop_tokens_and_minimum(model: LoadedModel) -> None:
    base = Running(
        model.engine, EngineRequest(prompt=(5, 6), params=SamplingParams(temperature=0, max_tokens=40))
    )
    text, tokens = base.finish().text[0], base.outcome.tokens[0]
    stop = text[6:9]
    params = SamplingParams(temperature=0, max_tokens=40, stop=(stop,))
    outcome = Running(model.engine, EngineRequest(prompt=(5, 6), params=params)).finish()
    assert outcome.text[0] == text[: text.index(stop)]
    assert (outcome.ends[0].reason, outcome.ends[0].stop) == ("stop", stop)
    params = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(tokens[3],))
    outcome = Running(model.engine, EngineRequest(prompt=(5, 6), params=params)).finish()
    assert outcome.tokens[0] == tokens[: tokens.index(tokens[3]) + 1]
    assert outcome.ends[0].stop == tokens[3]
    params = SamplingParams(temperature=0, max_tokens=40, min_tokens=9, stop_token_ids=(tokens[3],))
    outcome = Running(model.engine, EngineRequest(prompt=(5, 6), params=params)).finish()
    assert tokens[3] not in outcome.tokens[0][:8]


def test_logprobs_are_those_of_the_model(model: LoadedModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=4)
    outcome = Running(model.engine, EngineRequest(prompt=(5, 6), params=params)).finish()
    assert len(outcome.logprobs[0]) == 5
    for token, entry in zip(outcome.tokens[0], outcome.logprobs[0], strict=True):
        assert entry.token == token == entry.top[0][0]
        assert entry.logprob == entry.top[0][1]
        assert len(entry.top) == 4
        assert list(entry.top) == sorted(entry.top, key=lambda pair: -pair[1])
        assert np.exp([p for _, p in entry.top]).sum() <= 1.0001


def test_options_that_cannot_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="quantization is 'int3'"):
        EngineOptions(quantization="int3")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_batch_tokens is 4 and max_num_seqs 8"):
        EngineOptions(max_batch_tokens=4, max_num_seqs=8)
    with pytest.raises(UsageError, match="threads is 0"):
        EngineOptions(threads=0)
    with pytest.raises(UsageError, match="513 is more than the model's own 512"):
        load_model(str(folder), EngineOptions(max_model_len=513))
    with pytest.raises(UsageError, match="less than one page"):
        load_model(str(folder), EngineOptions(kv_cache_memory=10))
    monkeypatch.setattr("headrace.loading.memory_plan.free_memory_bytes", lambda: 10_000_000)
    with pytest.raises(OutOfMemory, match="are free"):
        load_model(str(folder), EngineOptions(max_batch_tokens=1 << 20))


def test_checkpoints_that_cannot_work(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"llama"', '"gpt9"'))
    known = r"'gpt9' is not supported; the nearest that is: 'gpt2'; known: .*llama, .*mistral"
    with pytest.raises(UnsupportedModel, match=known):
        load_model(str(folder), EngineOptions())
    (folder / "config.json").write_text(config.replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(CorruptFile, match=r"config\.json implies"):
        load_model(str(folder), EngineOptions())


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(UnsupportedModel, match=r"'model\.embed_tokens\.weight' is stored as I32"):
        load_model(str(folder), EngineOptions())


def test_a_recurrent_model_needs_no_pages_and_computes_every_prompt(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path, "mamba2"))
    with pytest.raises(UsageError, match="kv_cache_memory has no effect on a model without keys and values"):
        load_model(folder, EngineOptions(kv_cache_memory=1 << 20))
    with pytest.raises(UsageError, match="2,048 sequences of 1,048,576 tokens"):
        load_model(folder, EngineOptions(max_num_seqs=2048, max_batch_tokens=2048))
    model = load_model(folder, EngineOptions(max_num_seqs=4))
    try:
        plan = model.plan
        assert (plan.kv_bytes, plan.page_count, model.context_length) == (0, 4, 1 << 20)
        widths = 3 * (64 + 2 * 8) + 64 * 8  # of a layer: the rows of its convolutions, and its scan
        assert plan.state_bytes == 4 * 2 * widths * 4
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, n=3)
        request = EngineRequest(prompt=tuple(range(40)), params=params)
        outcomes = [Running(model.engine, request).finish() for _ in range(2)]
        for outcome in outcomes:
            usage = outcome.done.usage
            assert (usage.cached_tokens, usage.cache_miss_reason) == (0, "recurrent_state")
            assert outcome.tokens[0] == outcome.tokens[1] == outcome.tokens[2]
        assert outcomes[0].tokens == outcomes[1].tokens
        assert model.engine.status().free_pages == 4
    finally:
        model.close()
