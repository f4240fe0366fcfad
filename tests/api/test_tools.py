"""Tools and reasoning over HTTP, driven by the official client; the engine says what a model would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running

MODEL = "fake/model"
HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
TIME: Any = {"type": "function", "function": {"name": "time"}}
HERMES = "tools <tool_call>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'

Serve = Callable[..., Running]


def answering(serve: Serve, answer: str, source: str = HERMES, **flags: Any) -> Running:
    return serve(FakeModel(engine=FakeEngine(answer), template=FakeTemplate(source)), **flags)


def ask(server: Running, **more: Any) -> Any:
    body = {"model": MODEL, "messages": HELLO, "tools": [WEATHER, TIME]} | more
    return server.openai().chat.completions.create(**body)


def test_a_call_and_its_arguments(serve: Serve) -> None:
    reply = ask(answering(serve, "Let me see. " + CALL))
    choice = reply.choices[0]
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"town": "Köln"}
    assert re.fullmatch(r"call_[0-9a-f]{24}", call.id)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")


def test_parallel_calls_have_ids_of_their_own_and_no_text(serve: Serve) -> None:
    reply = ask(answering(serve, f"{CALL}\n{TIME_CALL}"))
    message = reply.choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["weather", "time"]
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.content is None


@pytest.mark.parametrize("choice", ["required", "any"])
def test_a_call_may_be_required_in_mistrals_word_too(serve: Serve, choice: str) -> None:
    server = answering(serve, CALL)
    assert ask(server, extra_body={"tool_choice": choice}).choices[0].finish_reason == "tool_calls"
    with pytest.raises(openai.BadRequestError, match="not one of"):
        ask(server, extra_body={"tool_choice": "maybe"})


def test_no_parallel_calls_means_one(serve: Serve) -> None:
    reply = ask(answering(serve, f"{CALL}\n{TIME_CALL}"), parallel_tool_calls=False)
    assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["weather"]


def test_streamed_calls_add_up(serve: Serve) -> None:
    chunks = list(ask(answering(serve, f"Well. {CALL}\n{TIME_CALL}"), stream=True, n=2))
    for choice in range(2):
        deltas = [c.choices[0].delta for c in chunks if c.choices[0].index == choice]
        assert "".join(delta.content or "" for delta in deltas) == "Well."
        calls: dict[int, dict[str, str]] = {}
        for part in (part for delta in deltas for part in delta.tool_calls or []):
            call = calls.setdefault(part.index, {"arguments": ""})
            if part.id is not None:
                call |= {"id": part.id, "name": part.function.name, "type": part.type}
            call["arguments"] += part.function.arguments
        assert [calls[0]["name"], calls[1]["name"]] == ["weather", "time"]
        assert json.loads(calls[0]["arguments"]) == {"town": "Köln"}
        assert calls[1]["arguments"] == "{}"
        ends = [c.choices[0].finish_reason for c in chunks if c.choices[0].index == choice]
        assert ends[-1] == "tool_calls"


def test_the_clients_own_accumulator_understands_the_stream(serve: Serve) -> None:
    client = answering(serve, CALL).openai()
    with client.chat.completions.stream(model=MODEL, messages=HELLO, tools=[WEATHER]) as stream:
        for _ in stream:
            pass
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"town": "Köln"}


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {bad}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"town": "a"',
        "a < b <tool",
    ],
)
def test_what_is_no_call_is_content(serve: Serve, answer: str) -> None:
    server = answering(serve, answer)
    choice = ask(server).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == (answer, None)
    assert choice.finish_reason == "stop"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(server, stream=True))
    assert text == answer


def test_a_call_cut_by_max_tokens_stays_as_far_as_it_came(serve: Serve) -> None:
    choice = ask(answering(serve, CALL), max_tokens=60).choices[0]
    assert choice.finish_reason == "length"
    assert '{"town": "Köln"}'.startswith(choice.message.tool_calls[0].function.arguments)


def test_the_template_sees_the_tools_unless_none_is_to_be_called(serve: Serve) -> None:
    server = answering(serve, CALL)
    template = server.model.template
    ask(server)
    assert [tool["function"]["name"] for tool in template.tools] == ["weather", "time"]
    reply = ask(server, tool_choice="none")
    assert template.tools is None
    assert reply.choices[0].message.content == CALL


def test_only_allowed_tools_are_calls(serve: Serve) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "time"}}]}
    server = answering(serve, CALL + TIME_CALL)
    reply = ask(server, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["time"]
    assert reply.choices[0].message.content == CALL
    assert len(server.model.template.tools) == 2


def test_mistral_ids(serve: Serve) -> None:
    answer = '[TOOL_CALLS][{"name": "time", "arguments": {}}]'
    [call] = ask(answering(serve, answer, "tools [TOOL_CALLS]")).choices[0].message.tool_calls
    assert re.fullmatch(r"[A-Za-z0-9]{9}", call.id)


def test_the_format_can_be_set(serve: Serve) -> None:
    server = answering(serve, CALL, "tools of no known syntax", tool_format="hermes")
    assert ask(server).choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("source", "more", "param", "words"),
    [
        ("no such thing", {}, "tools", "does not know"),
        ("tools of no known syntax", {}, "tools", "tool_format"),
        (HERMES, {"tools": "x"}, "tools", "not a list"),
        (HERMES, {"tools": [TIME, TIME]}, "tools", "rename"),
        (HERMES, {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "function"),
        (HERMES, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "a b"),
        (HERMES, {"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, "tools", "'x'"),
        (HERMES, {"tool_choice": "maybe"}, "tool_choice", "not one of 'none', 'auto', 'required'"),
        (HERMES, {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "'x'"),
        (HERMES, {"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        (HERMES, {"functions": [{"name": "f"}]}, "functions", "send tools"),
        (HERMES, {"function_call": {"name": "f"}}, "function_call", "send tools"),
        (HERMES, {"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    ],
)
def test_what_cannot_be_honored_is_a_400(
    serve: Serve, source: str, more: dict[str, Any], param: str, words: str
) -> None:
    server = answering(serve, "x", source)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, extra_body=more)
    assert caught.value.param == param
    assert words in caught.value.message
    assert server.model.engine.submitted == []


THINK = "<think></think>"


def test_reasoning_is_apart_and_counted(serve: Serve) -> None:
    server = answering(serve, "<think>\nhm</think>\n\nYes", THINK)
    reply = ask(server, tools=openai.NOT_GIVEN)
    message = reply.choices[0].message
    assert message.content == "Yes"
    assert message.reasoning == message.reasoning_content == "hm"
    # One token per byte: from the one that completes <think> to the one that completes </think>.
    assert reply.usage.completion_tokens_details.reasoning_tokens == len("> hm</think>")
    chunks = list(ask(server, tools=openai.NOT_GIVEN, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert "".join(delta.content or "" for delta in deltas) == "Yes"
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == len("> hm</think>")


def test_reasoning_that_the_prompt_opens(serve: Serve) -> None:
    server = answering(serve, f"hm</think>{CALL}", HERMES + THINK)
    server.model.template.tail = "<think>\n"
    message = ask(server).choices[0].message
    assert (message.reasoning, message.content) == ("hm", None)
    assert message.tool_calls[0].function.name == "weather"


def test_harmony(serve: Serve) -> None:
    answer = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather"
        ' <|constrain|>json<|message|>{"town": "Köln"}<|call|>'
    )
    source = "tools <|channel|>analysis"
    choice = ask(answering(serve, answer, source)).choices[0]
    assert choice.message.reasoning == "hm"
    assert choice.message.tool_calls[0].function.name == "weather"
    final = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    message = ask(answering(serve, final, source), tools=openai.NOT_GIVEN).choices[0].message
    assert (message.reasoning, message.content) == ("hm", "Yes")


def test_effort_reaches_a_template_that_reads_it(serve: Serve) -> None:
    server = answering(serve, "Yes", THINK)
    reply = ask(server, tools=openai.NOT_GIVEN, reasoning_effort="low")
    assert reply.warnings[0]["param"] == "reasoning_effort"
    server.model.template.reads |= {"reasoning_effort", "enable_thinking"}
    reply = ask(server, tools=openai.NOT_GIVEN, reasoning_effort="low")
    assert server.model.template.variables == {"reasoning_effort": "low"}
    assert not hasattr(reply, "warnings")
    server.model.template.reads -= {"reasoning_effort"}
    ask(server, tools=openai.NOT_GIVEN, reasoning_effort="none")
    assert server.model.template.variables == {"enable_thinking": False}
    extra = {"chat_template_kwargs": {"enable_thinking": True, "mood": 1}}
    reply = ask(server, tools=openai.NOT_GIVEN, extra_body=extra)
    assert [warning["param"] for warning in reply.warnings] == ["chat_template_kwargs.mood"]
