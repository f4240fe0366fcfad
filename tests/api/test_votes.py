"""Votes, the best of several, common budgets and leasts of reasoning over HTTP, with the official client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from in_process import REASONING_TEMPLATE, Running, shipped_model_server

MESSAGES: Any = [{"role": "user", "content": "Who came to the house?"}]
DIGIT = {"structured_outputs": {"regex": "[a-z]* [1-3]"}}
PATTERN = {"extract": "regex", "pattern": "[a-z]* ([1-3])"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with shipped_model_server(REASONING_TEMPLATE, max_num_seqs=8, max_batch_tokens=64) as running:
        yield running


def chat(server: Running, extra: dict[str, Any], **more: Any) -> Any:
    body = {"model": server.model.name, "messages": MESSAGES, "max_tokens": 60, "seed": 3} | more
    return server.openai().chat.completions.create(**body, extra_body=extra)


def complete(server: Running, extra: dict[str, Any], **more: Any) -> Any:
    body = {"model": server.model.name, "prompt": "Once there were", "max_tokens": 40, "seed": 3} | more
    return server.openai().completions.create(**body, extra_body=extra)


def test_the_answer_of_most_is_given_out(server: Running) -> None:
    texts = [choice.text for choice in complete(server, DIGIT, n=8).choices]
    digits = [text[-1] for text in texts]
    reply = complete(server, {**DIGIT, "vote": PATTERN}, n=8)
    [choice] = reply.choices
    best = max(digits, key=lambda digit: (digits.count(digit), -digits.index(digit)))
    assert choice.index == 0 and choice.text in texts and choice.text[-1] == best
    assert choice.scaling["answer"] == best
    assert choice.scaling["votes"][best] == max(choice.scaling["votes"].values())
    assert sum(choice.scaling["votes"].values()) <= 8
    assert set(choice.scaling) == {"answer", "votes"}


def test_what_was_saved_stands_in_the_usage(server: Running) -> None:
    vote = {"vote": {"extract": "regex", "pattern": "^(.)"}}
    every = complete(server, {}, n=8, stop=["a"])
    reply = complete(server, {**vote, "structured_outputs": {"regex": "x[a-z ]*"}}, n=8, stop=["a"])
    details = reply.usage.completion_tokens_details
    assert details.tokens_saved > 0 and reply.choices[0].scaling["answer"] == "x"
    assert not hasattr(every.usage.completion_tokens_details, "tokens_saved")
    assert not hasattr(every.choices[0], "scaling")


def test_each_prompt_has_its_own_vote(server: Running) -> None:
    prompts = ["Once", "The sea was"]
    reply = complete(server, {**DIGIT, "vote": PATTERN}, n=4, prompt=prompts, echo=True)
    assert [choice.index for choice in reply.choices] == [0, 1]
    for prompt, choice in zip(prompts, reply.choices, strict=True):
        assert choice.text.startswith(prompt) and choice.text[-1] == choice.scaling["answer"]


def test_a_chat_votes_about_what_comes_after_the_reasoning(server: Running) -> None:
    asked = {"thinking_token_budget": 8, "response_format": {"type": "json_object"}}
    reply = chat(server, {**asked, "vote": {"extract": "json_pointer", "pattern": ""}}, n=4)
    plain = chat(server, asked, n=4)
    messages = [(choice.message.reasoning, choice.message.content) for choice in plain.choices]
    [choice] = reply.choices
    assert (choice.message.reasoning, choice.message.content) in messages
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0
    never = chat(server, {"vote": {"extract": "text"}}, n=3)  # no reasoning ends, so nobody has an answer
    assert never.choices[0].scaling == {"answer": None, "votes": {}}
    assert never.choices[0].message.reasoning


@pytest.mark.parametrize("by", ["mean_logprob", "sum_logprob"])
def test_the_best_of_several(server: Running, by: str) -> None:
    plain = complete(server, {}, n=6, logprobs=0, stop=["."])
    scores = [sum(choice.logprobs.token_logprobs) for choice in plain.choices]
    if by == "mean_logprob":
        scores = [
            score / len(choice.logprobs.tokens) for score, choice in zip(scores, plain.choices, strict=True)
        ]
    order = sorted(range(6), key=lambda index: -scores[index])
    reply = complete(server, {"best_by": by}, n=2, best_of=6, stop=["."])
    assert [choice.text for choice in reply.choices] == [plain.choices[index].text for index in order[:2]]
    assert [c.scaling["score"] for c in reply.choices] == pytest.approx([scores[i] for i in order[:2]])
    assert all(choice.logprobs is None for choice in reply.choices)
    if by == "mean_logprob":
        assert reply.usage.completion_tokens == plain.usage.completion_tokens
        default = complete(server, {}, n=2, best_of=6, stop=["."])
        assert [choice.text for choice in default.choices] == [choice.text for choice in reply.choices]


def test_best_of_in_chats(server: Running) -> None:
    plain = chat(server, {"thinking_token_budget": 5}, n=4, logprobs=True)
    reply = chat(server, {"thinking_token_budget": 5, "best_of": 4}, n=1)
    scores = []
    for choice in plain.choices:
        values = [token.logprob for token in choice.logprobs.content]
        scores.append(sum(values) / len(values))
    best = max(range(4), key=lambda index: scores[index])
    assert reply.choices[0].message.content == plain.choices[best].message.content


def test_best_of_beams(server: Running) -> None:
    beams = complete(server, {"use_beam_search": True}, n=4, temperature=0)
    reply = complete(server, {"use_beam_search": True}, n=2, best_of=4, temperature=0)
    assert [choice.text for choice in reply.choices] == [choice.text for choice in beams.choices[:2]]


def test_one_budget_for_all_choices(server: Running) -> None:
    reply = complete(server, {"max_total_tokens": 50}, n=4)
    assert reply.usage.completion_tokens == 50 and len(reply.choices) == 4
    assert {choice.finish_reason for choice in reply.choices} == {"length"}
    assert {choice.stop_reason for choice in reply.choices} == {"max_total_tokens"}
    assert reply.choices[0].scaling == {"budget": "max_total_tokens"}
    ends = [
        (chunk.choices[0].finish_reason, chunk.choices[0].stop_reason)
        for chunk in complete(server, {"max_total_tokens": 50}, n=4, stream=True)
        if chunk.choices[0].finish_reason
    ]
    assert ends == [("length", "max_total_tokens")] * 4
    ample = complete(server, {"max_total_tokens": 5000}, n=2)
    assert not hasattr(ample.choices[0], "scaling")


def test_reasoning_of_at_least_so_many_tokens(server: Running) -> None:
    reply = chat(server, {"min_thinking_tokens": 20, "thinking_token_budget": 20})
    marks = len(server.model.tokenizer.encode("</think>", add_special=False))
    assert reply.usage.completion_tokens_details.reasoning_tokens == 20 + marks
    longer = {"min_thinking_tokens": 50, "thinking_continuation": " But"}
    stop_ids = {"stop_token_ids": [server.model.tokenizer.encode(" the")[-1]]}
    message = chat(server, longer | stop_ids).choices[0].message
    assert " But" in message.reasoning and " the " not in message.reasoning


def refused(call: Callable[[], Any], match: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError, match=match) as caught:
        call()
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("extra", "more", "match", "param"),
    [
        (
            {"min_thinking_tokens": 5, "thinking_budget": 4},
            {},
            r"\(5\) is larger than .*budget",
            "min_thinking_tokens",
        ),
        ({"min_thinking_tokens": 61}, {}, r"\(61\) is larger than max_tokens \(60\)", "min_thinking_tokens"),
        ({"thinking_budget": 61}, {}, r"thinking_budget \(61\) .* max_tokens \(60\)", "thinking_budget"),
        ({"thinking_continuation": "Hm"}, {}, "needs min_thinking_tokens", "thinking_continuation"),
        (
            {"min_thinking_tokens": 5, "thinking_continuation": "a</think>"},
            {},
            "which ends the reasoning",
            "thinking_continuation",
        ),
        ({"min_thinking_tokens": 5}, {"logprobs": True}, "have no logprobs", "min_thinking_tokens"),
        (
            {"min_thinking_tokens": 5, "best_of": 3},
            {},
            "best_of or min_thinking_tokens",
            "min_thinking_tokens",
        ),
        ({"vote": {"extract": "text"}}, {"stream": True}, "vote cannot be streamed", "vote"),
        ({"vote": {"extract": "text"}, "best_of": 4}, {}, "leave one out", "vote"),
        ({"vote": {"extract": "regex", "pattern": "("}}, {}, "missing \\)", "vote"),
        ({"vote": {"extract": "regex"}}, {}, "need a pattern", "vote"),
        ({"vote": {"extract": "last"}}, {}, "vote.extract", "vote"),
        ({"vote": "last_number"}, {}, "vote", "vote"),
        ({"best_by": "mean_logprob"}, {"n": 2}, r"needs best_of \(now 0\) larger than n \(2\)", "best_by"),
        ({"best_of": 3}, {"stream": True}, "cannot be streamed", "best_of"),
        ({"best_of": 1}, {"n": 2}, r"best_of \(1\) is smaller than n \(2\)", "best_of"),
        (
            {"max_total_tokens": 3},
            {"n": 4},
            r"max_total_tokens \(3\) is smaller than n \(4\)",
            "max_total_tokens",
        ),
    ],
)
def test_contradictions_are_named(
    server: Running, extra: dict[str, Any], more: dict[str, Any], match: str, param: str
) -> None:
    refused(lambda: chat(server, extra, **more), match, param)


def test_completions_have_no_reasoning_to_bound(server: Running) -> None:
    refused(lambda: complete(server, {"min_thinking_tokens": 5}), "not supported", "min_thinking_tokens")


def test_the_fields_are_documented(server: Running) -> None:
    paths = server.http().get("/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name in ("vote", "best_of", "best_by", "max_total_tokens"):
            assert "description" in str(body["properties"][name]), name


def test_nothing_is_left_behind(server: Running) -> None:
    status = server.model.engine.status()
    assert (status.running, status.waiting) == (0, 0)
    assert status.available_pages == status.page_count
