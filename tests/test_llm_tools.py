"""Tools from Python, with a real engine: a demanded call is one, whatever the model would say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headrace import LLM
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import InvalidRequest

TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}\n{% endfor %}"
TALK = [{"role": "user", "content": "What is the weather?"}]
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("novelette", max_num_seqs=8) as loaded:
        loaded.model = replace(loaded.model, template=ChatTemplate(TEMPLATE))
        yield loaded


def test_a_demanded_call(llm: LLM) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    whole = llm.chat(TALK, max_tokens=480, n=3, **asked)
    for choice in whole.choices:
        [call] = choice.tool_calls
        assert (call.name, choice.finish_reason, choice.text) == ("weather", "tool_calls", "")
        arguments = json.loads(call.arguments)
        assert arguments["unit"] in ("C", "F")
        assert 1 <= arguments["days"] <= 9
    *_, last = llm.stream_chat(TALK, max_tokens=480, n=3, **asked)
    streamed = [[(call.name, call.arguments) for call in c.tool_calls] for c in last.completion.choices]
    assert streamed == [[(call.name, call.arguments) for call in c.tool_calls] for c in whole.choices]


def test_schemas_that_cannot_be_compiled_leave_arguments_free(llm: LLM) -> None:
    """The compiler refuses patterns that overlap, which nothing before it sees: no 400, whatever is asked."""
    schema = {"type": "object", "properties": {}, "patternProperties": {"^a": {}, "a$": {"type": "null"}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "odd", "parameters": schema}}]
    choice = {"type": "function", "function": {"name": "odd"}}
    asked = {"tools": tools, "parallel_tool_calls": False, "seed": 3, "max_tokens": 40}
    [call] = llm.chat(TALK, tool_choice=choice, **asked).tool_calls
    assert call.name == "odd"
    assert llm.chat(TALK, **asked).tool_calls == ()
    tools[1]["function"]["strict"] = True
    with pytest.raises(InvalidRequest, match="not disjoint"):
        llm.chat(TALK, tool_choice=choice, **asked)


def test_free_text_stays_text(llm: LLM) -> None:
    free = llm.chat(TALK, tools=TOOLS, max_tokens=8, seed=1)
    assert free.tool_calls == ()
    assert free.text
    assert free.finish_reason == "length"


def test_unknown_options_raise(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="tool_choise"):
        llm.chat(TALK, tools=TOOLS, tool_choise="required")
    with pytest.raises(InvalidRequest, match="does not know tools"):
        plain = replace(llm.model, template=ChatTemplate("{{ messages[0].content }}"))
        original, llm.model = llm.model, plain
        try:
            llm.chat(TALK, tools=TOOLS)
        finally:
            llm.model = original
