"""Several steps in one call: the bytes are those of single steps, and where needed the loop is asked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from free_tokens import FreeTokens
from headrace._native import MultiStepResult
from headrace.engine import multi_step
from headrace.engine.request import EngineRequest, RequestFailed
from headrace.engine.sampling.token_limits import TokenLimits
from headrace.engine.scaling.options import Scaling, Vote
from headrace.engine.scheduler import scheduler as schedule
from headrace.executors.native import NativeExecutor
from headrace.grammar.constraint import Constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from random_requests import VOCABULARY, answers_alone, load_with_pages, random_request, small_model
from tiny import Running, tiny_model

Guessing = tuple[LoadedModel, list[MultiStepResult]]  # and what its calls brought
CASES = [
    ("llama3", "keep"),
    ("mistral_window", "int8"),
    ("qwen3_moe_mixed", "int4"),
    ("mamba2_groups", "int8"),
    ("Q6_K.gguf", "keep"),
]
TRIALS = 500
REQUESTS = 30
PROMPT = tuple(range(5, 25))
PLAIN: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 60, "ignore_eos": True}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of every call that runs several; time does not limit them."""
    steps: list[int] = []
    real = NativeExecutor.run_multi_step

    def run_multi_step(self: NativeExecutor, *given: Any, **more: Any) -> MultiStepResult:
        steps.append(given[3])
        return real(self, *given, **more)

    monkeypatch.setattr(NativeExecutor, "run_multi_step", run_multi_step)
    monkeypatch.setattr(multi_step, "LONGEST_S", 3600.0)
    return steps


@pytest.fixture
def model(tmp_path: Any) -> Iterator[LoadedModel]:
    loaded = load_model(str(tiny_model(tmp_path)), EngineOptions(speculative="off"))
    yield loaded
    loaded.close()


@pytest.mark.parametrize(("golden", "weights"), CASES)
def test_bytes_are_those_of_single_steps(
    golden: str, weights: str, tmp_path: Any, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "RESERVE_PAGES", 0)  # so that sequences are preempted
    rng = random.Random(golden)
    folder = small_model(tmp_path, golden)
    stems = [[rng.randrange(VOCABULARY) for _ in range(45)] for _ in range(3)]
    requests = [_unwatched(random_request(rng, stems), rng) for _ in range(REQUESTS)]
    alone = [one.bits for one in answers_alone(folder, requests, quantization=weights, speculative="off")]
    assert not calls
    models = [
        load_with_pages(
            folder, EngineOptions(quantization=weights, threads=threads, max_model_len=160, **more), pages
        )  # type: ignore[arg-type]
        for threads, pages, more in [
            (2, 400, {"max_num_seqs": 8}),
            (1, 14, {"max_num_seqs": 6, "max_batch_tokens": 40}),
            (3, 24, {"max_num_seqs": 4, "speculative": "off"}),
        ]
    ]
    for _ in range(TRIALS // len(CASES)):
        engine = rng.choice(models).engine
        picked = [rng.randrange(REQUESTS) for _ in range(rng.randint(1, 4))]
        running = [Running(engine, requests[index]) for index in picked]
        if rng.random() < 0.1:
            running[0].ticket.cancel()
        for index, one in zip(picked, running, strict=True):
            outcome = one.finish()
            if all(end.reason != "cancelled" for end in outcome.ends.values()):
                assert outcome.bits == alone[index], requests[index]
    statuses = [loaded.engine.status() for loaded in models]
    for loaded, status in zip(models, statuses, strict=True):
        assert status.available_pages == status.page_count
        loaded.close()
    assert sum(status.preemptions for status in statuses) > 0
    assert len(calls) > TRIALS // len(CASES)


def _unwatched(request: EngineRequest, rng: random.Random) -> EngineRequest:
    """Mostly without what needs the loop after every token."""
    if rng.random() < 0.1:
        return request
    params = replace(request.params, logprobs=None, mirostat=0, dry_multiplier=0.0, banned_strings=())
    return replace(request, params=params, constraint=None)


def test_most_tokens_come_several_at_a_time(model: LoadedModel, calls: list[int]) -> None:
    request = EngineRequest(prompt=PROMPT, params=SamplingParams(**PLAIN))
    Running(model.engine, request).finish()
    assert sum(calls) > 50 and max(calls) == multi_step.MAX_STEPS


def test_long_steps_stay_single(
    model: LoadedModel, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_step, "LONGEST_S", 1e-9)
    Running(model.engine, EngineRequest(prompt=PROMPT, params=SamplingParams(**PLAIN))).finish()
    assert not calls


@pytest.mark.parametrize(
    "asked",
    [
        {"params": SamplingParams(**PLAIN, logprobs=2)},
        {"params": SamplingParams(**PLAIN, mirostat=2)},
        {"params": SamplingParams(**PLAIN, dry_multiplier=0.8)},
        {"params": SamplingParams(**PLAIN, banned_strings=("1",))},
        {"params": SamplingParams(**PLAIN, allowed_token_ids=(5, 6, 7))},
        {"params": SamplingParams(**PLAIN), "constraint": Constraint("regex", "[!-9]*")},
        {"params": SamplingParams(**PLAIN, n=3), "scaling": Scaling(max_total_tokens=150)},
        {
            "params": SamplingParams(**PLAIN, n=3),
            "scaling": Scaling(vote=Vote("function", function=str.strip)),
        },
        {"params": SamplingParams(n=2, use_beam_search=True, max_tokens=40)},
    ],
    ids=lambda asked: ",".join(asked),
)
def test_what_is_watched_comes_token_by_token(model: LoadedModel, calls: list[int], asked: Any) -> None:
    Running(model.engine, EngineRequest(prompt=PROMPT, **asked)).finish()
    assert not calls


@pytest.mark.parametrize("golden", ["llama3", "mamba2_groups"])
def test_an_error_within_a_call_is_that_of_single_steps(
    golden: str, tmp_path: Any, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one certain token every token is forbidden, so there is none left to draw."""
    folder = str(tiny_model(tmp_path, golden))
    request = EngineRequest(prompt=PROMPT, params=SamplingParams(**PLAIN))
    [free] = answers_alone(folder, [request], speculative="off")
    tokens = free.tokens[0]
    last = next(at for at in range(12, 60) if tokens[at] not in tokens[:at])
    forbidden = [[tokens[last], token] for token in range(256)]
    monkeypatch.setattr(TokenLimits, "bad_words", lambda self, params: forbidden)
    [alone] = answers_alone(folder, [request], speculative="off")
    loaded = load_model(folder, EngineOptions(speculative="off"))
    outcome = Running(loaded.engine, request).finish()
    loaded.close()
    assert calls
    assert outcome.bits == alone.bits and outcome.tokens[0] == tokens[: last + 1]
    [failed], [expected] = outcome.terminal, alone.terminal
    assert isinstance(failed, RequestFailed) and isinstance(expected, RequestFailed)
    assert str(failed.error) == str(expected.error) and "no token is left" in str(failed.error)


def test_what_arrives_interrupts(
    model: LoadedModel, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_step, "MAX_STEPS", 10_000)
    params = SamplingParams(seed=3, max_tokens=400, ignore_eos=True)

    def interrupted() -> bool:
        calls.clear()
        long = Running(model.engine, EngineRequest(prompt=PROMPT, params=params))
        long.next()
        Running(model.engine, EngineRequest(prompt=PROMPT, params=SamplingParams(max_tokens=1))).finish()
        assert len(long.finish().tokens[0]) == 400
        return len(calls) > 1  # one call makes all, unless it is interrupted

    assert any(interrupted() for _ in range(50))


def test_a_call_ends_with_the_last_sequence(model: LoadedModel, calls: list[int]) -> None:
    params = SamplingParams(**PLAIN | {"max_tokens": 30})
    tokens = Running(model.engine, EngineRequest(prompt=PROMPT, params=params)).finish().tokens[0]
    before = model.engine.status().steps
    ended = replace(params, stop_token_ids=(tokens[5],))
    outcome = Running(model.engine, EngineRequest(prompt=PROMPT, params=ended)).finish()
    assert outcome.tokens[0] == tokens[: tokens.index(tokens[5]) + 1]
    assert model.engine.status().steps - before == len(outcome.tokens[0])


@pytest.fixture
def guessing(tmp_path: Any, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Guessing]:
    loaded = load_model(str(tiny_model(tmp_path)), EngineOptions())
    assert loaded.engine._speculation is not None
    loaded.engine._speculation.costs = FreeTokens()
    ran: list[MultiStepResult] = []
    counting = NativeExecutor.run_multi_step

    def run_multi_step(self: NativeExecutor, *given: Any, **more: Any) -> MultiStepResult:
        ran.append(counting(self, *given, **more))
        return ran[-1]

    monkeypatch.setattr(NativeExecutor, "run_multi_step", run_multi_step)
    yield loaded, ran
    loaded.close()


def test_a_call_guesses_what_stood_in_a_text_before(guessing: Guessing) -> None:
    loaded, ran = guessing
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, logit_bias={9: 100.0})
    outcome = Running(loaded.engine, EngineRequest(prompt=(5, 9, 9, 9), params=params)).finish()
    assert outcome.tokens[0] == [9] * 100
    status = loaded.engine.status()
    assert status.accepted == status.drafted > 60 and status.steps < 20
    assert sum(len(call.tokens[0]) for call in ran) == 99  # all but the first
    assert all(tokens > 1 and seconds > 0 for call in ran for tokens, seconds in call.draft_steps)


def test_costs_become_known_where_a_step_fills_a_call(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of larger models: nothing is repeated, and what they cost is learned all the same."""
    monkeypatch.setattr(multi_step, "LONGEST_S", 1e-9)
    loaded = load_model(str(tiny_model(tmp_path)), EngineOptions())
    speculation = loaded.engine._speculation
    assert speculation is not None
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, logit_bias={9: 100.0})
    request = EngineRequest(prompt=(5, 9, 9, 9), params=params)
    for _ in range(20):
        Running(loaded.engine, request).finish()
    loaded.close()
    assert speculation.costs.known and speculation.drafted > 0


def test_wrong_guesses_are_counted_and_change_nothing(guessing: Guessing, tmp_path: Any) -> None:
    loaded, ran = guessing
    requests = [
        EngineRequest(prompt=tuple(range(5, 25)) * 3, params=SamplingParams(**PLAIN | {"seed": seed}))
        for seed in range(12)
    ]
    alone = answers_alone(str(tiny_model(tmp_path / "alone")), requests, speculative="off")
    running = [Running(loaded.engine, request) for request in requests]
    assert [one.finish().bits for one in running] == [one.bits for one in alone]
    guessed = [draft for call in ran for draft in call.drafts if draft[2]]
    status = loaded.engine.status()
    assert sum(count for *_, count, _, _ in guessed) <= status.drafted
    assert 0 <= status.accepted < status.drafted
    assert status.available_pages == status.page_count
