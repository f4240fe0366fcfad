"""Budgets of reasoning over HTTP, through the official client: by every name they have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import REASONING_TEMPLATE, Running, shipped_model_server

MESSAGES: Any = [{"role": "user", "content": "Who came to the house?"}]
HARMONY = "<|channel|>analysis"
NAMES: list[dict[str, Any]] = [
    {"thinking_token_budget": 12},
    {"thinking_budget": 12},
    {"reasoning": {"max_tokens": 12}},
    {"reasoning": {"max_tokens": 12}, "thinking_budget": 12},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with shipped_model_server(REASONING_TEMPLATE, max_num_seqs=8, max_batch_tokens=64) as running:
        yield running


def ask(server: Running, extra: dict[str, Any], **more: Any) -> Any:
    body = {"model": server.model.name, "messages": MESSAGES, "max_tokens": 60, "seed": 3} | more
    return server.openai().chat.completions.create(**body, extra_body=extra)


@pytest.mark.parametrize("extra", NAMES)
def test_so_many_tokens_are_reasoning(server: Running, extra: dict[str, Any]) -> None:
    encode = server.model.tokenizer.encode
    reply = ask(server, extra)
    message = reply.choices[0].message
    assert message.content and "</think>" not in message.content
    assert reply.usage.completion_tokens == 60
    marks = len(encode("</think>", add_special=False))
    assert reply.usage.completion_tokens_details.reasoning_tokens == 12 + marks
    free = ask(server, {}).choices[0].message
    assert free.content == "" and free.reasoning.startswith(message.reasoning.rstrip())


def test_choices_and_streams_have_the_same_budget(server: Running) -> None:
    whole = ask(server, {"thinking_budget": 5}, n=3)
    texts = {index: ["", ""] for index in range(3)}
    for chunk in ask(server, {"thinking_budget": 5}, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index][0] += getattr(choice.delta, "reasoning", None) or ""
            texts[choice.index][1] += choice.delta.content or ""
    messages = [choice.message for choice in whole.choices]
    assert [[message.reasoning, message.content] for message in messages] == [*texts.values()]
    assert all(message.content for message in messages)


def test_the_answer_keeps_to_its_schema(server: Running) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [["red"], ["green"]]}}}
    reply = ask(server, {"thinking_token_budget": 0}, response_format=schema)
    assert json.loads(reply.choices[0].message.content) in (["red"], ["green"])
    assert not hasattr(reply.choices[0].message, "reasoning")


def test_differing_budgets_are_refused(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="differ: send one of them") as caught:
        ask(server, {"thinking_budget": 3, "reasoning": {"max_tokens": 4}})
    assert caught.value.param == "thinking_budget"
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        ask(server, {"reasoning": {"effort": "low"}, "reasoning_effort": "high"})


@pytest.mark.parametrize("extra", NAMES[:3])
def test_a_model_that_does_not_reason_refuses_a_budget(
    serve: Callable[..., Running], extra: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match="has no markers for reasoning") as caught:
        ask(serve(), extra)
    assert caught.value.param == next(iter(extra)) and caught.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError, match="continue_final_message"):
        reasoning = serve(FakeModel(template=FakeTemplate("<think></think>")))
        ask(reasoning, {**extra, "continue_final_message": True})
    with pytest.raises(openai.BadRequestError, match=next(iter(extra))):
        serve().openai().completions.create(model="fake/model", prompt="a", extra_body=extra)


@pytest.mark.parametrize("tools", [False, True])
def test_harmony_goes_on_with_the_answer(serve: Callable[..., Running], tools: bool) -> None:
    fake = FakeModel(engine=FakeEngine("hello"), template=FakeTemplate(HARMONY + " tools"))
    server = serve(fake)
    tool = {"type": "function", "function": {"name": "time"}}
    ask(server, {"thinking_token_budget": 9}, **({"tools": [tool]} if tools else {}))
    thinking = fake.engine.submitted[-1].thinking
    assert (thinking.max_tokens, thinking.reopens, thinking.starts_in_reasoning) == (9, True, False)
    assert (thinking.start, thinking.end) == (b"<|channel|>analysis<|message|>", b"<|end|>")
    closing = bytes(thinking.closing).decode()
    assert closing == "<|end|><|start|>assistant" + ("" if tools else "<|channel|>final<|message|>")
