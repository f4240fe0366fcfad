"""Messages in OpenAI's format, and what templates receive."""

from __future__ import annotations

import pytest

from headrace.chat.messages import Message, ToolCall, messages_from_openai, template_messages
from headrace.errors import InvalidRequest


def test_a_conversation_with_tools() -> None:
    messages = messages_from_openai(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
                    {"id": "2", "type": "function", "function": {"name": "g", "arguments": "not json"}},
                ],
            },
            {"role": "tool", "content": "5", "tool_call_id": "1", "name": "f"},
        ]
    )
    calls = (ToolCall("1", "f", '{"x": 1}'), ToolCall("2", "g", "not json"))
    assert messages == [
        Message("system", "Be brief."),
        Message("user", "a\nb"),
        Message("assistant", None, tool_calls=calls, reasoning="hm"),
        Message("tool", "5", name="f", tool_call_id="1"),
    ]
    third, last = template_messages(messages)[2:]
    assert third["content"] is None
    assert third["reasoning_content"] == third["reasoning"] == third["thinking"] == "hm"
    assert third["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "not json"}},
    ]
    assert last == {"role": "tool", "content": "5", "name": "f", "tool_call_id": "1"}


def test_plain_messages_have_no_extra_fields() -> None:
    assert template_messages([Message("user", "x")]) == [{"role": "user", "content": "x"}]


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("text", "messages[1]"),
        ({}, "messages[1].role"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "assistant", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": "x", "name": 5}, "messages[1].name"),
        ({"role": "user", "content": "x", "mood": "good"}, "messages[1].mood"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, "messages[1].function_call"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"type": "x"}]}, "messages[1].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
            "messages[1].tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_unsupported_fields_are_named(message: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_from_openai([{"role": "user", "content": "x"}, message])
    assert caught.value.param == param
    assert param in caught.value.message


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        messages_from_openai([])
