"""Budgets of reasoning in the engine: exact, the same however a request runs, and before any grammar."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headrace.engine.request import EngineRequest, RequestFailed
from headrace.engine.scaling.options import Ranking, Scaling
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.sampling.reasoning_budget import ReasoningBudget
from tiny import Outcome, Running

END = "</think>"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=8, max_batch_tokens=64, threads=2))
    yield loaded
    loaded.close()


def request(
    model: LoadedModel, budget: int, constraint: Constraint | None = None, **sampling: object
) -> EngineRequest:
    params = SamplingParams(**({"seed": 7, "max_tokens": 60} | sampling))  # type: ignore[arg-type]
    closing = tuple(model.tokenizer.encode(END, add_special=False))
    return EngineRequest(
        prompt=tuple(model.tokenizer.encode_prompt("Once upon a time there was a")),
        params=params,
        constraint=constraint,
        is_continuation=True,
        thinking=ReasoningBudget(
            max_tokens=budget, start=b"<think>", end=END.encode(), closing=closing, starts_in_reasoning=True
        ),
    )


def run(model: LoadedModel, budget: int, constraint: Constraint | None = None, **sampling: object) -> Outcome:
    return Running(model.engine, request(model, budget, constraint, **sampling)).finish()


@pytest.mark.parametrize("budget", [0, 1, 5, 23])
def test_exactly_so_many_tokens_come_before_the_mark(model: LoadedModel, budget: int) -> None:
    outcome = run(model, budget, n=3)
    for choice in range(3):
        before, mark, after = outcome.text[choice].partition(END)
        assert mark and after
        assert model.tokenizer.decode(outcome.tokens[choice][:budget]).strip() == before.strip()
    free = run(model, 1000, n=3)
    for choice in range(3):
        assert outcome.tokens[choice][:budget] == free.tokens[choice][:budget]
        assert END not in free.text[choice]


def test_the_forced_mark_costs_no_step_and_changes_nothing(model: LoadedModel) -> None:
    before = model.engine.status().steps
    forced = run(model, 9)
    middle = model.engine.status().steps
    stepwise = run(model, 9, logprobs=0)
    assert forced.tokens == stepwise.tokens and forced.text == stepwise.text
    marks = len(request(model, 9).thinking.closing)  # type: ignore[union-attr]
    assert marks > 1
    assert model.engine.status().steps - middle - (middle - before) >= marks - 1


def test_a_grammar_starts_where_the_reasoning_was_ended(model: LoadedModel) -> None:
    colors = Constraint("choice", '["red", "green"]', after=END)
    for logprobs in (None, 0):
        outcome = run(model, 6, colors, logprobs=logprobs)
        _, _, answer = outcome.text[0].partition(END)
        assert answer.strip() in ("red", "green") and outcome.ends[0].reason == "stop"
    # What only the answer must keep to does not stand in the way of the mark.
    allowed = tuple(model.tokenizer.encode("abc", add_special=False))
    assert END in run(model, 4, allowed_token_ids=allowed).text[0]


def test_preempted_or_beside_others_it_is_the_same(model: LoadedModel) -> None:
    alone = run(model, 11, n=4, max_tokens=200).bits
    small = load_model(
        "novelette",
        EngineOptions(max_num_seqs=8, max_batch_tokens=16, threads=1, kv_cache_memory=small_cache(model)),
    )
    try:
        several = [Running(small.engine, request(small, 11, n=4, max_tokens=200)) for _ in range(2)]
        assert [running.finish().bits for running in several] == [alone, alone]
        assert small.engine.status().preemptions > 0
    finally:
        small.close()


def small_cache(model: LoadedModel) -> int:
    """Room for about three of the eight sequences."""
    return model.plan.kv_bytes // model.engine.status().page_count * 50


def test_a_mark_that_would_end_too_early_is_an_error(model: LoadedModel) -> None:
    mark = request(model, 3).thinking.closing[0]  # type: ignore[union-attr]
    [event] = run(model, 3, stop_token_ids=(mark,), min_tokens=20).terminal
    assert isinstance(event, RequestFailed) and isinstance(event.error, InvalidRequest)
    assert run(model, 3, stop_token_ids=(mark,)).ends[0].stop == mark


# The model ends no reasoning, but it ends sentences: here a full stop is the mark.


def at_least(model: LoadedModel, least: int, most: int | None = None, **sampling: object) -> EngineRequest:
    asked = request(model, 0, **sampling)
    assert asked.thinking is not None
    further = tuple(model.tokenizer.encode(" Wait", add_special=False))
    closing = tuple(model.tokenizer.encode(".", add_special=False))
    thinking = replace(
        asked.thinking, max_tokens=most, end=b".", closing=closing, min_tokens=least, continuation=further
    )
    return replace(asked, thinking=thinking)


def before_the_end(model: LoadedModel, tokens: list[int]) -> int:
    """How many tokens come before the one that completes the mark."""
    return next(i for i, token in enumerate(tokens) if b"." in model.tokenizer.token_bytes(token))


@pytest.mark.parametrize("least", [1, 13, 40])
def test_reasoning_is_not_over_before_its_least(model: LoadedModel, least: int) -> None:
    plain = Running(model.engine, at_least(model, 0, n=4, max_tokens=150)).finish()
    longer = Running(model.engine, at_least(model, least, n=4, max_tokens=150)).finish()
    for choice in range(4):
        natural = before_the_end(model, plain.tokens[choice])
        assert before_the_end(model, longer.tokens[choice]) >= least
        same = natural if natural < least else 150
        assert longer.tokens[choice][:same] == plain.tokens[choice][:same]
        if natural < least:
            before, wait, _ = longer.text[choice].partition("Wait")
            assert wait and before.rstrip() == plain.text[choice].partition(".")[0].rstrip()


def test_least_and_most_together_are_exact(model: LoadedModel) -> None:
    outcome = Running(model.engine, at_least(model, 31, 31, n=3, max_tokens=100)).finish()
    assert [before_the_end(model, outcome.tokens[choice]) for choice in range(3)] == [31] * 3


def test_the_end_of_the_text_does_not_end_reasoning_early(model: LoadedModel) -> None:
    stop_ids = tuple(
        {token for text in (" the", " a", " and") for token in model.tokenizer.encode(text)[-1:]}
    )
    outcome = Running(model.engine, at_least(model, 50, max_tokens=120, stop_token_ids=stop_ids)).finish()
    assert len(outcome.tokens[0]) >= 50 and "Wait" in outcome.text[0]
    assert not set(outcome.tokens[0][:50]) & set(stop_ids)


def test_a_least_is_the_same_however_it_runs(model: LoadedModel) -> None:
    asked = at_least(model, 60, n=4, max_tokens=120)
    alone = Running(model.engine, asked).finish().bits
    small = load_model("novelette", EngineOptions(max_num_seqs=2, max_batch_tokens=16, threads=1))
    try:
        several = [Running(small.engine, asked) for _ in range(2)]
        assert [running.finish().bits for running in several] == [alone, alone]
    finally:
        small.close()
    stepwise = Running(model.engine, at_least(model, 60, n=4, max_tokens=120, bad_words=("zzzz",))).finish()
    assert stepwise.bits == alone


def test_leasts_that_contradict_something(model: LoadedModel) -> None:
    def refused(asked: EngineRequest, match: str) -> None:
        with pytest.raises(InvalidRequest, match=match) as caught:
            model.engine.submit(asked, lambda events: None)
        assert caught.value.param == "min_thinking_tokens"

    refused(at_least(model, 61), r"min_thinking_tokens \(61\) is larger than max_tokens \(60\)")
    refused(at_least(model, 9, logprobs=0), "have no logprobs: leave one of the two out")
    refused(replace(at_least(model, 9), scaling=Scaling(rank=Ranking())), "ranked by log-probability")
    with pytest.raises(ContextLengthExceeded, match="min_thinking_tokens is 510 and the prompt has"):
        model.engine.submit(at_least(model, 510, max_tokens=None), lambda events: None)
    with pytest.raises(
        InvalidRequest, match=r"min_thinking_tokens \(5\) is larger than .* \(thinking_token_budg"
    ):
        at_least(model, 5, 4)
    with pytest.raises(InvalidRequest, match="thinking_continuation has no tokens"):
        ReasoningBudget(max_tokens=5, start=b"", end=b"x", closing=(), min_tokens=1)
