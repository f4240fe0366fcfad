"""Each advice of EXPLAIN is checked by pulling its lever: counters say what it saved. What seconds it saves
is measured by bench/serving/advice_gains.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from headrace.cli.explain_text import explain_text
from headrace.engine.request import Timing, Usage
from headrace.engine.step_share import LookupReplay, StepShare, TokenCosts
from headrace.inference.completion import Completion
from headrace.llm import LLM
from headrace.loading import memory_plan
from headrace.telemetry.advice import advice
from headrace.telemetry.explain_node import EngineTrace, ExplainNode

PROMPT = "list the files of each folder by size and then by name, newest first; " * 6


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("mini", speculative="off") as loaded:
        yield loaded


def parts(node: ExplainNode, name: str) -> list[ExplainNode]:
    own = [node] if node.name.split()[0] == name else []
    children = () if node.children is UNSET else node.children
    return own + [found for child in children for found in parts(child, name)]


def said(answer: Completion) -> dict[str, dict[str, Any]]:
    assert answer.explain is not None
    detail = {} if answer.explain.detail is UNSET else answer.explain.detail
    return {one["lever"]: one for one in detail.get("advice", [])}


def read_tokens(answer: Completion) -> int:
    assert answer.explain is not None
    found = parts(answer.explain, "prefill")
    return sum(0 if one.detail is UNSET else one.detail["tokens"] for one in found)


def test_the_prefix_cache(llm: LLM) -> None:
    cold = llm.generate("a" + PROMPT, max_tokens=4, explain=True)
    told = said(cold)["prefix_cache"]
    assert told["saved_s"] > 0 and "no prompt before it began alike" in told["text"]
    warm = llm.generate("a" + PROMPT, max_tokens=4, explain=True)
    assert read_tokens(cold) - read_tokens(warm) == told["saved_tokens"]
    assert "prefix_cache" not in said(warm) and warm.text == cold.text


def test_fewer_choices(llm: LLM) -> None:
    given: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "seed": 1, "temperature": 1.0}
    several = llm.generate("list files", n=4, explain=True, **given)
    told = said(several)["fewer_choices"]
    one = llm.generate("list files", n=1, explain=True, **given)
    saved = several.usage.completion_tokens - one.usage.completion_tokens
    assert saved == told["saved_tokens"] == 60 and "fewer_choices" not in said(one)


def decoded(answer: Completion) -> Mapping[str, Any]:
    assert answer.explain is not None
    [node] = parts(answer.explain, "decode")
    assert node.detail is not UNSET
    return node.detail


REPEATING: dict[str, Any] = {
    "prompt": "echo one two three four five six seven eight nine " * 12,
    "max_tokens": 64,
}
REPEATING |= {"ignore_eos": True, "temperature": 0.0, "explain": True}


def test_smaller_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With caches that are too small for `mini`."""

    def asked(llm: LLM) -> dict[str, dict[str, Any]]:
        return said(llm.generate("list files", max_tokens=20, ignore_eos=True, explain=True))

    monkeypatch.setattr(memory_plan, "cache_bytes", lambda: 1 << 20)
    with LLM("mini", speculative="off") as llm, LLM("mini", speculative="off", quantization="int4") as small:
        tries = (asked(llm).get("smaller_weights") for _ in range(20))
        told = next(one for one in tries if one is not None)  # other work may take most of a request's time
        assert "in int4 instead of int8" in told["text"] and told["saved_s"] > 0
        saved = llm.model.plan.weight_bytes_per_token - small.model.plan.weight_bytes_per_token
        again = asked(small)
    assert abs(told["saved_bytes"] / saved - 1) < 0.15
    assert "smaller_weights" not in again, "there is nothing smaller"


def test_weights_that_stay_in_the_caches_need_not_be_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "cache_bytes", lambda: 64 << 20)
    with LLM("mini", speculative="off") as llm:
        answers = [llm.generate("list", max_tokens=40, ignore_eos=True, explain=True) for _ in range(3)]
    assert all("smaller_weights" not in said(one) for one in answers)


def test_speculation_on(llm: LLM) -> None:
    plain = llm.generate(**REPEATING)
    told = said(plain)["speculation_on"]
    assert told["saved_s"] > 0 and decoded(plain)["steps"] == 63
    with LLM("mini") as drafting:
        for _ in range(3):  # what drafts bring is learned
            drafting.generate(**REPEATING)
        drafted = drafting.generate(**REPEATING)
    assert drafted.text == plain.text
    saved = decoded(plain)["steps"] - decoded(drafted)["steps"]
    assert 0.5 < saved / told["saved_steps"] < 1.5
    assert "speculation_on" not in said(drafted), "it is on"


def test_a_bigger_batch(llm: LLM) -> None:
    """Eight requests at once take an eighth of the steps; that a step of eight takes less than eight of one
    is what the advice predicts."""
    given: dict[str, Any] = {"max_tokens": 129, "ignore_eos": True, "explain": True}
    alone = llm.generate("list files", **given)
    told = said(alone)["bigger_batch"]
    assert "with 8 requests at once instead of 1 a token" in told["text"] and told["saved_s"] > 0
    before = llm.model.engine.status().steps
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: llm.generate(f"list {number}", **given), range(8)))
    steps = llm.model.engine.status().steps - before
    assert steps < 4 * 128, "not 8 times as many as one of them takes"
    assert sum(one.usage.completion_tokens for one in together) == 8 * 129


def test_levers_of_what_was_drafted() -> None:
    """Seconds are added up by hand: a step without drafts takes 2 ms, one more token 0.1 ms."""
    costs = TokenCosts(row_s=1e-4, plain_s=2e-3)
    share = StepShare("decode", 0.0, 0.1, 40, 0.1, 0.09, 0.0, 0.0, 44, 40, 200, drafted=160, accepted=4)
    trace = EngineTrace(0.0, 0.1, Usage(10, 44, 0), Timing(0.0, 0.0, 0.1), (share,), costs)
    found = {one["lever"]: one for one in advice(trace)}
    assert found["speculation_off"]["saved_s"] == pytest.approx(0.1 - 44 * 2e-3)
    assert "4 of 160 drafted tokens were right" in found["speculation_off"]["text"]
    replaced = replace(
        trace, shares=(replace(share, drafted=0, accepted=0),), replay=LookupReplay(44, 50, 20)
    )
    [on] = [one for one in advice(replaced) if one["lever"] == "speculation_on"]
    assert on["saved_s"] == pytest.approx(20 * 2.5e-3 - 50 * 1e-4) and on["saved_steps"] == 20


def test_tokens_that_a_grammar_forces_are_no_choices() -> None:
    """A step of one choice has several of them."""
    share = StepShare("decode", 0.0, 0.1, 10, 0.1, 0.09, 0.0, 0.0, 30, 10, 30)
    trace = EngineTrace(0.0, 0.1, Usage(10, 30, 0), Timing(0.0, 0.0, 0.1), (share,), TokenCosts(row_s=1e-3))
    assert "fewer_choices" not in [one["lever"] for one in advice(trace)]
    [found, *_] = advice(replace(trace, shares=(replace(share, rows=30),)))
    assert found["lever"] == "fewer_choices" and found["saved_tokens"] == 20


def test_choices_that_are_computed_while_the_weights_are_read_cost_nothing() -> None:
    share = StepShare("decode", 0.0, 0.1, 10, 0.1, 0.1, 0.0, 0.0, 30, 30, 30)
    costs = TokenCosts(row_s=4e-3, read_s=9e-3)
    trace = EngineTrace(0.0, 0.1, Usage(10, 30, 0), Timing(0.0, 0.0, 0.1), (share,), costs)
    [found, *_] = advice(trace)
    assert (found["lever"], found["saved_s"]) == ("fewer_choices", pytest.approx(0.01))
    [found, *_] = advice(replace(trace, costs=TokenCosts(row_s=4e-3)))
    assert found["saved_s"] == pytest.approx(0.08)


def test_what_saves_little_is_not_told() -> None:
    share = StepShare("decode", 0.0, 0.1, 50, 0.1, 0.09, 0.0, 0.0, 50, 50, 50)
    costs = TokenCosts(row_s=1.95e-3)  # a step is all arithmetic
    trace = EngineTrace(0.0, 0.1, Usage(10, 50, 0), Timing(0.0, 0.0, 0.1), (share,), costs, "int8", 10**6, 64)
    assert advice(trace) == []


def test_the_text_ends_with_the_advice(llm: LLM) -> None:
    answer = llm.generate("c" + PROMPT, max_tokens=2, explain=True)
    assert answer.explain is not None
    *_, last = explain_text(answer.explain).splitlines()
    assert last.startswith(("prefix cache: with its ", "bigger batch: with 8 requests"))
