"""Beam search: as transformers', whatever the batch, the pages and the steps; and its rules by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden import FOLDER
from headrace.engine.request import EngineRequest, RequestFailed
from headrace.engine.sampling.beam_search import BeamSearch
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import choice_constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams, with_defaults
from tiny import Outcome, Running, tiny_model

GOLDENS = json.loads((FOLDER / "beams.json").read_text())
CASES = GOLDENS["cases"]
TOLERANCE = 1e-4
FLOAT32 = 1e-6  # transformers adds up in float32, and length_penalty -1 makes scores large


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), GOLDENS["checkpoint"])


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LoadedModel]:
    loaded = load_model(str(folder), EngineOptions(cache_dir=None, max_num_seqs=16, max_batch_tokens=128))
    yield loaded
    loaded.close()


def request(case: dict, **more: object) -> EngineRequest:  # type: ignore[type-arg]
    params = SamplingParams(
        use_beam_search=True,
        n=case["num_beams"],
        length_penalty=case["length_penalty"],
        early_stopping=case["early_stopping"],
        max_tokens=GOLDENS["max_tokens"],
        stop_token_ids=tuple(case["stop_ids"]),
        ignore_eos=True,
        **more,  # type: ignore[arg-type]
    )
    return EngineRequest(prompt=tuple(case["prompt"]), params=params, is_continuation=True)


def check(case: dict, outcome: Outcome) -> None:  # type: ignore[type-arg]
    assert [outcome.tokens[i] for i in range(case["num_beams"])] == case["sequences"]
    for i, score in enumerate(case["scores"]):
        assert outcome.ends[i].score == pytest.approx(score, abs=TOLERANCE, rel=FLOAT32)
        stopped = case["sequences"][i][-1] in case["stop_ids"]
        assert outcome.ends[i].reason == ("stop" if stopped else "length")
    assert outcome.done.usage.completion_tokens == sum(map(len, case["sequences"]))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c['num_beams']}-{c['length_penalty']}-{c['early_stopping']}"
)
def test_the_beams_are_those_of_transformers(model: LoadedModel, case: dict) -> None:  # type: ignore[type-arg]
    check(case, Running(model.engine, request(case)).finish())
    status = model.engine.status()
    assert status.running == status.waiting == 0 and status.available_pages == status.page_count


def test_many_searches_at_once_and_few_pages_change_nothing(folder: Path, model: LoadedModel) -> None:
    alone = [Running(model.engine, request(case, logprobs=3)).finish() for case in CASES[::5]]
    per_page = model.plan.kv_bytes // model.plan.page_count
    # 45 tokens are 3 pages; 3 slots are fewer than most searches have beams.
    options = EngineOptions(cache_dir=None, max_num_seqs=3, max_batch_tokens=20, kv_cache_memory=7 * per_page)
    small = load_model(str(folder), options)
    try:
        running = [Running(small.engine, request(case, logprobs=3)) for case in CASES[::5]]
        plain = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        beside = Running(small.engine, EngineRequest(prompt=(5, 6, 7), params=plain))
        for one, expected in zip(running, alone, strict=True):
            outcome = one.finish()
            assert outcome.bits == expected.bits
            assert [end.score for end in outcome.ends.values()] == [e.score for e in expected.ends.values()]
        other = Running(model.engine, EngineRequest(prompt=(5, 6, 7), params=plain)).finish()
        assert beside.finish().tokens == other.tokens
        status = small.engine.status()
        assert status.running == status.waiting == 0 and status.available_pages == status.page_count
    finally:
        small.close()


def test_beams_share_the_pages_of_their_prompt(folder: Path, model: LoadedModel) -> None:
    case = CASES[-1] | {"prompt": [i % 97 + 2 for i in range(320)]}
    expected = Running(model.engine, request(case)).finish()
    per_page = model.plan.kv_bytes // model.plan.page_count
    # 20 pages of prompt, which all beams together have once: five times would not fit.
    options = EngineOptions(
        cache_dir=None, max_num_seqs=16, max_batch_tokens=128, kv_cache_memory=(20 + 5 * 6) * per_page
    )
    small = load_model(str(folder), options)
    try:
        before = small.engine.status().steps
        assert Running(small.engine, request(case)).finish().bits == expected.bits
        assert small.engine.status().preemptions == 0
        assert small.engine.status().steps - before <= 3 + GOLDENS["max_tokens"]  # all beams in every step
    finally:
        small.close()


def test_log_probabilities_add_up_to_the_score(model: LoadedModel) -> None:
    case = CASES[0] | {"length_penalty": 1.0}
    outcome = Running(model.engine, request(case, logprobs=2)).finish()
    for i, tokens in outcome.tokens.items():
        entries = outcome.logprobs[i]
        assert [entry.token for entry in entries] == tokens
        assert all(len(entry.top) == 2 for entry in entries)
        total = sum(entry.logprob for entry in entries) / len(tokens)
        assert outcome.ends[i].score == pytest.approx(total, abs=1e-9)


def test_cancelling_ends_all_beams(model: LoadedModel) -> None:
    case = CASES[-1] | {"stop_ids": []}
    asked = request(case)
    running = Running(model.engine, asked)
    running.ticket.cancel()
    outcome = running.finish()
    assert len(outcome.ends) == case["num_beams"]
    status = model.engine.status()
    assert status.running == status.waiting == 0 and status.available_pages == status.page_count


def test_what_beams_cannot_do_is_refused_by_name(model: LoadedModel) -> None:
    for name, value in (
        ("temperature", 0.7),
        ("top_k", 5),
        ("repetition_penalty", 1.1),
        ("stop", ("x",)),
        ("banned_strings", ("x",)),
        ("prompt_logprobs", 1),
    ):
        with pytest.raises(InvalidRequest, match=name) as raised:
            SamplingParams(use_beam_search=True, **{name: value})  # type: ignore[arg-type]
        assert raised.value.param == name
    for name, value in (("length_penalty", 2.0), ("early_stopping", True)):
        with pytest.raises(InvalidRequest, match="needs use_beam_search"):
            SamplingParams(**{name: value})  # type: ignore[arg-type]
    asked = EngineRequest(
        prompt=(5,), params=SamplingParams(use_beam_search=True), constraint=choice_constraint(["a"])
    )
    with pytest.raises(InvalidRequest, match="choice"):
        model.engine.submit(asked, lambda events: None)
    defaults = SamplingParams(temperature=0.7, top_k=20, repetition_penalty=1.1)
    assert with_defaults(defaults, {"use_beam_search": True}).top_k == 0


def search(**settings: object) -> BeamSearch:
    given = {"width": 2, "max_tokens": 9, "min_tokens": 0, "stop_ids": frozenset({0})}
    return BeamSearch(**(given | {"length_penalty": 1.0, "early_stopping": False, "tops": None} | settings))  # type: ignore[arg-type]


def test_the_rules_by_hand() -> None:
    beams = search()
    beams.advance([[(1, -1.0), (2, -1.0), (3, -2.0)]])
    assert [beam.tokens for beam in beams.live] == [(1,), (2,)]
    beams.advance([[(0, -0.1), (1, -3.0)], [(5, -0.1), (0, -0.2)]])
    # (1, 0) has -1.1, (2, 5) too: the earlier beam's comes first. (2, 0) is third: too late to end.
    assert [(score, beam.tokens) for score, beam in beams.finished] == [(-0.55, (1, 0))]
    assert [beam.tokens for beam in beams.live] == [(2, 5), (1, 1)]
    assert not beams.over


def test_no_end_before_min_tokens() -> None:
    beams = search(min_tokens=1)
    beams.advance([[(0, -0.1), (1, -1.0), (2, -2.0)]])
    assert beams.finished == [] and [beam.tokens for beam in beams.live] == [(1,), (2,)]


def test_the_longest_beams_end(model: LoadedModel) -> None:
    beams = search(max_tokens=1)
    beams.advance([[(1, -1.0), (2, -1.5), (3, -2.0)]])
    assert beams.over and [beam.tokens for _, beam in beams.finished] == [(1,), (2,)]
    outcome = Running(
        model.engine,
        EngineRequest(prompt=(5,), params=SamplingParams(use_beam_search=True, n=4, max_tokens=1)),
    ).finish()
    assert not isinstance(outcome.terminal[0], RequestFailed) and len(outcome.ends) == 4
