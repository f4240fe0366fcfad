"""Each advice of EXPLAIN is checked by pulling its lever: counters of tokens say what it saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import UNSET

from headrace.cli.explain_text import explain_text
from headrace.inference.completion import Completion
from headrace.llm import LLM
from headrace.telemetry.explain import ExplainNode

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
    return sum(one.detail["tokens"] for one in parts(answer.explain, "prefill"))


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


def test_the_text_ends_with_the_advice(llm: LLM) -> None:
    answer = llm.generate("c" + PROMPT, max_tokens=2, explain=True)
    assert answer.explain is not None
    *_, last = explain_text(answer.explain).splitlines()
    assert last.startswith("prefix cache: with its ")
