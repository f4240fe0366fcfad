"""Speculation's contract: whatever is drafted, the bytes are those of plain decoding.

Each trial is one request in a random mix on an engine whose drafts are right, wrong or partly right, with few
or many pages, and must equal bit for bit what the request gives on an engine that drafts nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from free_tokens import FreeTokens
from headrace.engine.request import EngineRequest
from headrace.engine.request_state import ChoiceState
from headrace.engine.scheduler import scheduler as schedule
from headrace.engine.scheduler.sequence import State
from headrace.engine.speculative.controller import MAX_SLEEP, SpeculationController
from headrace.engine.speculative.drafter import Draft
from headrace.engine.speculative.step_cost_model import LARGEST
from headrace.errors import UsageError
from headrace.loading import loader as load
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from random_requests import VOCABULARY, answers_alone, load_with_pages, random_request, small_model
from tiny import Running, tiny_model

TRIALS = int(os.environ.get("TEST_SPECULATION_TRIALS", "5000"))  # 10,000 by `make nightly`
CASES = [
    pytest.param(("llama3", "keep"), marks=pytest.mark.nightly),
    pytest.param(("qwen3", "bf16"), marks=pytest.mark.nightly),
    ("mistral_window", "int8"),
    ("gemma2", "int4"),
    ("qwen3_moe_mixed", "int4"),
    ("deepseek_v3", "int8"),
    ("gpt_oss", "keep"),
    ("Q6_K.gguf", "keep"),
]
REQUESTS = 40
Answers = dict[tuple[tuple[int, ...], int | None, int], list[int]]  # by prompt, seed, choice
MIX = 5  # requests in a mix, on average


class Prompter(SpeculationController):
    """Drafts what plain decoding gives, spoilt at random places: deep drafts, rejected anywhere."""

    def __init__(self, *, max_rows: int) -> None:
        super().__init__(max_rows=max_rows)
        self.answers: Answers = {}
        self._rng = random.Random(max_rows)

    def propose(self, choices: Iterable[ChoiceState], step: int, *, several: bool = False) -> None:
        self._set.clear()
        for choice in choices:
            sequence, request = choice.sequence, choice.request_state.request
            answer = self.answers.get((request.prompt, request.params.seed, sequence.choice))
            sequence.draft = []
            if answer is None or sequence.state is not State.RUNNING:
                continue
            at = len(sequence.tokens) - sequence.prompt_length
            draft = [*answer[at : at + self._rng.randint(0, 12)], self._rng.randrange(VOCABULARY)]
            sequence.draft = [
                token if self._rng.random() < 0.85 else self._rng.randrange(VOCABULARY) for token in draft
            ]
            self._set[sequence.id] = Draft(self.lookup, choice, sequence.draft, 1.0)


def draft_freely(patch: pytest.MonkeyPatch, answers: Answers | None = None) -> None:
    """Models loaded from now on draft as much as they can, whatever the clock says; with `answers` by
    a prompter."""
    real = load.make_speculation

    def speculation(*given: object) -> SpeculationController:
        made = real(*given)  # type: ignore[arg-type]
        assert made is not None
        if answers is not None:
            made = Prompter(max_rows=32)
            made.answers = answers
        made.costs = FreeTokens()
        return made

    patch.setattr(load, "make_speculation", speculation)


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines that draft, and what every request gives on one that does not."""

    drafting: list[LoadedModel]
    requests: list[EngineRequest]
    plain: list[tuple[object, ...]]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    golden, weights = request.param
    folder = small_model(tmp_path_factory.mktemp("model"), golden)
    rng = random.Random(golden)
    stems = [[rng.randrange(VOCABULARY) for _ in range(45)] for _ in range(3)]
    requests = [random_request(rng, [*stems, stems[0] * 2]) for _ in range(REQUESTS)]
    outcomes = answers_alone(folder, requests, quantization=weights, speculative="off")
    answers = {
        (one.prompt, one.params.seed, choice): tokens
        for one, outcome in zip(requests, outcomes, strict=True)
        for choice, tokens in outcome.tokens.items()
    }
    shapes = [
        ("prompter", 2, 8, 64, 400),
        ("prompter", 1, 6, 40, 12),
        ("prompter", 3, 24, 33, 16),
        ("lookup", 2, 12, 64, 14),
        ("itself", 2, 8, 80, 400),
        ("itself", 1, 8, 40, 12),
        ("layers", 2, 8, 64, 60),
    ]
    drafting = [_drafting(folder, weights, answers, *shape) for shape in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "RESERVE_PAGES", 0)  # so that sequences are preempted
        yield Engines(drafting, requests, [outcome.bits for outcome in outcomes])
    for model in drafting:
        model.close()


def _drafting(
    folder: str,
    weights: str,
    answers: Answers,
    drafter: str,
    threads: int,
    sequences: int,
    budget: int,
    pages: int,
) -> LoadedModel:
    options = EngineOptions(
        quantization=weights,  # type: ignore[arg-type]
        threads=threads,
        max_num_seqs=sequences,
        max_batch_tokens=budget,
        max_model_len=160,
        speculative_model=folder if drafter == "itself" else None,
        speculative_layers=1 if drafter == "layers" else None,
    )
    with pytest.MonkeyPatch.context() as patch:
        draft_freely(patch, answers if drafter == "prompter" else None)
        return load_with_pages(folder, options, pages)


def test_bytes_are_those_of_plain_decoding(engines: Engines, request: pytest.FixtureRequest) -> None:
    rng = random.Random(request.node.name)
    trials = 0
    while trials < TRIALS // len(CASES):
        model = rng.choice(engines.drafting)
        picked = [rng.randrange(REQUESTS) for _ in range(rng.randint(1, 2 * MIX - 1))]
        running = [Running(model.engine, engines.requests[index]) for index in picked]
        if rng.random() < 0.1:
            running[0].ticket.cancel()
        for index, one in zip(picked, running, strict=True):
            outcome = one.finish()
            if all(end.reason != "cancelled" for end in outcome.ends.values()):
                assert outcome.bits == engines.plain[index], engines.requests[index]
                trials += 1
    statuses = [model.engine.status() for model in engines.drafting]
    assert all(status.drafted for status in statuses), [status.drafted for status in statuses]
    assert sum(status.accepted for status in statuses) > trials
    assert sum(status.drafted - status.accepted for status in statuses) > trials
    assert sum(status.preemptions for status in statuses) > 10
    assert all(status.available_pages == status.page_count for status in statuses)


def test_a_model_of_its_own_is_right_about_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, drawn with the same random numbers: every draft is accepted, at any temperature."""
    draft_freely(monkeypatch)
    folder = str(tiny_model(tmp_path, "llama3"))
    model = load_model(folder, EngineOptions(speculative_model=folder, max_batch_tokens=64))
    params = SamplingParams(temperature=1.2, top_p=0.95, seed=3, max_tokens=90, ignore_eos=True, n=2)
    Running(model.engine, EngineRequest(prompt=(5, 6, 7), params=params)).finish()
    status = model.engine.status()
    model.close()
    assert status.accepted == status.drafted > 60
    assert status.steps < 30


def test_a_prediction_comes_in_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_freely(monkeypatch)
    model = load_model(str(tiny_model(tmp_path, "llama3")), EngineOptions())
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    prompt = tuple(range(5, 25))
    plain = Running(model.engine, EngineRequest(prompt=prompt, params=params)).finish()
    before = model.engine.status().steps
    again = EngineRequest(prompt=prompt, params=params, prediction=tuple(plain.tokens[0]))
    assert Running(model.engine, again).finish().bits == plain.bits
    assert model.engine.status().steps - before < 6
    model.close()


def test_while_nothing_may_be_tried_nothing_is_asked_but_what_announces_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_freely(monkeypatch)
    model = load_model(str(tiny_model(tmp_path, "llama3")), EngineOptions())
    speculation = model.engine._speculation
    assert speculation is not None
    for drafter in (speculation.lookup, speculation._prediction):
        assert drafter.gain is not None
        drafter.gain.resting_until = 1_000_000  # for longer than this test takes
    asked: list[int] = []  # steps that had run
    propose = speculation.propose

    def counted(choices: Collection[ChoiceState], step: int, *, several: bool = False) -> None:
        asked.append(step)
        propose(choices, step, several=several)

    monkeypatch.setattr(speculation, "propose", counted)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    prompt = tuple(range(5, 25))
    plain = Running(model.engine, EngineRequest(prompt=prompt, params=params)).finish()
    assert len(asked) <= 100 // MAX_SLEEP + 3 and speculation.drafted == 0
    asked.clear()
    again = EngineRequest(prompt=prompt, params=params, prediction=tuple(plain.tokens[0]))
    assert Running(model.engine, again).finish().bits == plain.bits
    assert speculation.accepted > 90  # from its first token on
    model.close()


class DearTokens(FreeTokens):
    """Nothing pays: another token takes as long as a step."""

    def curve(self) -> list[float]:
        return [float(tokens) for tokens in range(LARGEST + 1)]


def test_what_is_refused_is_learned_from_too(tmp_path: Path) -> None:
    """A text that repeats itself: its drafts do not pay, but are seen to be right."""
    model = load_model(str(tiny_model(tmp_path, "llama3")), EngineOptions())
    speculation = model.engine._speculation
    assert speculation is not None
    speculation.costs = DearTokens()
    before = [rate.value for rate in speculation.lookup.rates]
    bias = {9: 100.0}  # nothing else can come
    params = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True, logit_bias=bias)
    outcome = Running(model.engine, EngineRequest(prompt=(5, 9, 9, 9), params=params)).finish()
    assert set(outcome.tokens[0]) == {9}
    model.close()
    after = [rate.value for rate in speculation.lookup.rates]
    assert speculation.drafted < 30  # now and then one is tried
    assert max(now - then for now, then in zip(after, before, strict=True)) > 0.01


def test_a_draft_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folder, other = tiny_model(tmp_path / "a"), tiny_model(tmp_path / "b")
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"!": 2,', '"\\u20ac": 2,'))
    with pytest.raises(UsageError, match=r"id 2 is '€' there and '!' here"):
        load_model(str(folder), EngineOptions(speculative_model=str(other)))


def test_first_layers_draft_without_weights_of_their_own(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    plain = load_model(folder, EngineOptions())
    drafting = load_model(folder, EngineOptions(speculative_layers=1))
    assert drafting.plan.weights_bytes == plain.plan.weights_bytes
    assert drafting.plan.draft_bytes > 0
    plain.close()
    drafting.close()
    with pytest.raises(UsageError, match=r"speculative_layers is 3, llama has 3 layers"):
        load_model(folder, EngineOptions(speculative_layers=3))
    with pytest.raises(UsageError, match="name one"):
        EngineOptions(speculative_layers=1, speculative_model="x")


def test_a_draft_model_needs_speculation() -> None:
    with pytest.raises(UsageError, match="speculative off"):
        EngineOptions(speculative_model="x", speculative="off")
