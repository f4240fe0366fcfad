"""Votes, rankings, budgets and leasts of reasoning through the Python front door."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headrace import LLM
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.scaling.options import Ranking, Vote
from headrace.errors import DeadlineExceeded, InvalidRequest

OPENING = "It was a cold evening, and the old house"
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n{# </think> #}"
MESSAGES = [{"role": "user", "content": "Who came to the house?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("novelette", max_num_seqs=8) as loaded:
        loaded.model = replace(loaded.model, template=ChatTemplate(TEMPLATE))
        yield loaded


def test_the_winner_is_the_first_choice(llm: LLM) -> None:
    asked = {"n": 8, "max_tokens": 40, "seed": 3, "stop": "."}
    plain = llm.generate(OPENING, **asked)
    for vote in (lambda text: text.split()[0], {"extract": "regex", "pattern": r"^\s*(\S+)"}):
        voted = llm.generate(OPENING, **asked, vote=vote)
        assert voted.selection is not None and voted.selection.answer == voted.text.split()[0]
        assert voted.choices[0] == plain.choices[voted.selection.order[0]]
        assert len(voted.choices) == 8
        reasons = [choice.finish_reason for choice in voted.choices]
        assert (voted.usage.tokens_saved > 0) == ("cancelled" in reasons)
    assert plain.selection is None and plain.usage.tokens_saved == 0
    assert llm.generate(OPENING, **asked, vote=Vote("text")).choices[0] in plain.choices


def test_the_best_come_first(llm: LLM) -> None:
    longest = llm.generate(OPENING, n=4, max_tokens=20, seed=5, stop=",", best_by=len)
    lengths = [len(choice.text) for choice in longest.choices]
    assert lengths == sorted(lengths, reverse=True)
    assert [choice.score for choice in longest.choices] == lengths
    likely = llm.generate(OPENING, n=4, max_tokens=20, seed=5, stop=",", best_by="mean_logprob")
    scores = [choice.score for choice in likely.choices]
    assert None not in scores and scores == sorted(scores, reverse=True)
    two = llm.generate(OPENING, n=4, max_tokens=20, seed=5, best_by=Ranking("sum_logprob", keep=2))
    assert [choice.score is not None for choice in two.choices[:2]] == [True, True]


def test_budgets_of_all_choices(llm: LLM) -> None:
    completion = llm.generate(OPENING, n=4, max_tokens=40, seed=5, max_total_tokens=33)
    assert completion.usage.completion_tokens == 33
    assert completion.selection is not None and completion.selection.budget == "max_total_tokens"
    with pytest.raises(DeadlineExceeded):
        llm.generate(OPENING, deadline_s=1e-9)


def test_chats_bound_their_reasoning(llm: LLM) -> None:
    both = llm.chat(MESSAGES, max_tokens=60, seed=3, min_thinking_tokens=17, thinking_token_budget=17)
    assert both.text and both.reasoning
    words = llm.model.tokenizer.encode(" the")[-1]
    longer = llm.chat(
        MESSAGES,
        max_tokens=60,
        seed=3,
        stop_token_ids=[words],
        min_thinking_tokens=40,
        thinking_continuation=" However",
    )
    assert " However" in longer.reasoning
    with pytest.raises(InvalidRequest, match="needs min_thinking_tokens"):
        llm.chat(MESSAGES, thinking_continuation="x")
    voted = llm.chat(
        MESSAGES, n=3, max_tokens=40, seed=3, thinking_token_budget=4, vote=lambda text: text.strip()[:1]
    )
    assert voted.selection is not None and voted.selection.answer == voted.text.strip()[:1]


def test_a_function_that_fails_is_the_callers_error(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="the function failed: KeyError"):
        llm.generate(OPENING, n=2, max_tokens=5, vote=lambda text: {}[text])
    with pytest.raises(InvalidRequest, match="there is no 'majority': choose one of text, last_number"):
        llm.generate(OPENING, vote="majority")
    assert llm.generate(OPENING, max_tokens=2).text
