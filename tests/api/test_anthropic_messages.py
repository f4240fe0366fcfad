"""Messages through Anthropic's official client: what goes to the model, and what comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running
from pydantic import BaseModel

from headrace.chat.messages import Message, ToolCall

MODEL = "fake/model"
HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a town",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
TIME: Any = {"name": "time", "input_schema": {"type": "object", "properties": {}}}
HERMES = "tools <tool_call>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
THINK = "<think></think>"

Serve = Callable[..., Running]


class Recording(FakeTemplate):
    """Keeps the messages that it was given."""

    def render(self, messages: list[Any], **options: Any) -> str:
        self.messages = list(messages)
        return super().render(messages, **options)


def answering(serve: Serve, answer: str, source: str = "", **flags: Any) -> Running:
    return serve(FakeModel(engine=FakeEngine(answer, ends=True), template=Recording(source)), **flags)


def ask(server: Running, **more: Any) -> Any:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 400} | more
    return server.anthropic().messages.create(**body)


def prompt_of(server: Running) -> list[Message]:
    """The messages that the template was given."""
    return server.model.template.messages


def test_a_message(serve: Serve) -> None:
    server = answering(serve, "Good day.")
    reply = ask(server)
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL)
    assert reply.id.startswith("msg_")
    [block] = reply.content
    assert (block.type, block.text) == ("text", "Good day.")
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert reply.usage.input_tokens == len("user: hello\nassistant:")
    assert reply.usage.output_tokens == len("Good day.")
    assert (reply.usage.cache_read_input_tokens, reply.usage.cache_creation_input_tokens) == (0, 0)
    assert not hasattr(reply, "warnings")


def test_max_tokens(serve: Serve) -> None:
    reply = ask(answering(serve, "Good day."), max_tokens=4)
    assert (reply.content[0].text, reply.stop_reason) == ("Good", "max_tokens")


def test_an_empty_answer_has_no_blocks_and_can_be_sent_back(serve: Serve) -> None:
    server = answering(serve, " ", THINK)
    reply = ask(server)
    assert (reply.content, reply.stop_reason) == ([], "end_turn")
    turns = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "well?"}]
    ask(server, messages=turns)
    assert [message.content for message in prompt_of(server)] == ["hello", "", "well?"]


def test_sampling_reaches_the_engine(serve: Serve) -> None:
    server = answering(serve, "x")
    ask(server, stop_sequences=["a", "b"], extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7})
    params = server.model.engine.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 7)
    assert (params.stop, params.max_tokens) == (("a", "b"), 400)


def test_system_as_text_and_as_blocks(serve: Serve) -> None:
    server = answering(serve, "x")
    ask(server, system="Be brief.")
    blocks: Any = [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "Be kind."},
    ]
    ask(server, system=blocks, messages=[*HELLO, {"role": "system", "content": "Now in verse."}])
    first, second = server.model.engine.submitted
    assert bytes(first.prompt).decode() == "system: Be brief.\nuser: hello\nassistant:"
    expected = "system: Be brief.\nBe kind.\nuser: hello\nsystem: Now in verse.\nassistant:"
    assert bytes(second.prompt).decode() == expected


def test_turns_of_one_role_become_one(serve: Serve) -> None:
    server = answering(serve, "x")
    turns: Any = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "time", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
    ]
    ask(server, messages=turns)
    assert prompt_of(server) == [
        Message("user", "a\nb\nc"),
        Message("assistant", "d", tool_calls=(ToolCall("1", "time", "{}"),)),
        Message("tool", "", name="time", tool_call_id="1"),
    ]


def test_the_answer_goes_on_with_the_assistants_text(serve: Serve) -> None:
    server = answering(serve, " and all", "<tool_call> tools <think></think>")
    reply = ask(server, messages=[*HELLO, {"role": "assistant", "content": "One"}])
    assert reply.content[0].text == " and all"
    assert bytes(server.model.engine.submitted[0].prompt).decode() == "user: hello\nassistant: One"


def test_a_tool_loop_of_two_turns(serve: Serve) -> None:
    server = answering(serve, f"Let me see. {CALL}\n{TIME_CALL}", HERMES)
    reply = ask(server, tools=[WEATHER, TIME])
    text, call, time = reply.content
    assert (text.text, reply.stop_reason) == ("Let me see.", "tool_use")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"town": "Köln"})
    assert (time.name, time.input) == ("time", {})
    assert [tool["function"]["name"] for tool in server.model.template.tools] == ["weather", "time"]
    assert server.model.template.tools[0]["function"]["parameters"] == WEATHER["input_schema"]

    server.model.engine.answer = "It rains."
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": time.id, "content": "no clock", "is_error": True},
        {"type": "text", "text": "Well?"},
    ]
    turns = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    reply = ask(server, messages=turns, tools=[WEATHER, TIME])
    assert (reply.content[0].text, reply.stop_reason) == ("It rains.", "end_turn")
    calls = (ToolCall(call.id, "weather", '{"town": "Köln"}'), ToolCall(time.id, "time", "{}"))
    assert prompt_of(server)[1:] == [
        Message("assistant", "Let me see.", tool_calls=calls),
        Message("tool", "rain", name="weather", tool_call_id=call.id),
        Message("tool", "Error: no clock", name="time", tool_call_id=time.id),
        Message("user", "Well?"),
    ]


def test_the_clients_own_tool_loop(serve: Serve) -> None:
    server = answering(serve, CALL, HERMES)
    asked: list[str] = []

    @anthropic.beta_tool
    def weather(town: str) -> str:
        """The weather in a town."""
        asked.append(town)
        server.model.engine.answer = "It rains."
        return "rain"

    runner = server.anthropic().beta.messages.tool_runner(
        model=MODEL, messages=HELLO, max_tokens=400, tools=[weather]
    )
    assert runner.until_done().content[0].text == "It rains."
    assert asked == ["Köln"]
    assert [message.role for message in prompt_of(server)] == ["user", "assistant", "tool"]


def test_tool_choice(serve: Serve) -> None:
    server = answering(serve, CALL + TIME_CALL, HERMES)
    free = ask(server, tools=[WEATHER, TIME], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.name for block in free.content] == ["weather"]
    named = ask(server, tools=[WEATHER, TIME], tool_choice={"type": "tool", "name": "time"})
    assert [block.name for block in named.content if block.type == "tool_use"] == ["time"]
    forced = ask(server, tools=[WEATHER, TIME], tool_choice={"type": "any"})
    assert forced.stop_reason == "tool_use"
    none = ask(server, tools=[WEATHER, TIME], tool_choice={"type": "none"})
    assert server.model.template.tools is None
    assert (none.content[0].text, none.stop_reason) == (CALL + TIME_CALL, "end_turn")
    constraints = [request.constraint for request in server.model.engine.submitted]
    assert [constraint is not None for constraint in constraints] == [True, True, True, False]


def test_a_call_that_is_none_is_text(serve: Serve) -> None:
    broken = '<tool_call>{"name": "weather", "arguments": {"town": "a"'
    reply = ask(answering(serve, broken, HERMES), tools=[WEATHER])
    assert [(block.type, block.text) for block in reply.content] == [("text", broken)]
    assert reply.stop_reason == "end_turn"


def test_a_call_that_is_cut_has_no_input_and_a_warning(serve: Serve) -> None:
    reply = ask(answering(serve, CALL, HERMES), tools=[WEATHER], max_tokens=60)
    assert (reply.content[0].name, reply.content[0].input) == ("weather", {})
    assert reply.stop_reason == "max_tokens"
    assert reply.warnings[0]["param"] == "max_tokens" and "weather" in reply.warnings[0]["message"]


@pytest.mark.parametrize("strict", [True, False, None])
def test_tools_are_held_to_their_schema(serve: Serve, strict: bool | None) -> None:
    server = answering(serve, CALL, HERMES)
    ask(server, tools=[WEATHER if strict is None else WEATHER | {"strict": strict}])
    assert server.model.engine.submitted[0].constraint is not None


def test_thinking_is_a_block_of_its_own(serve: Serve) -> None:
    server = answering(serve, "<think>\nhm</think>\n\nYes", THINK)
    reply = ask(server)
    thinking, text = reply.content
    assert (thinking.type, thinking.thinking) == ("thinking", "hm")
    assert thinking.signature == hashlib.sha256(b"hm").hexdigest()
    assert text.text == "Yes"
    assert reply.usage.output_tokens_details.thinking_tokens == len("> hm</think>")
    turns = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "more"}]
    ask(server, messages=turns)
    assert prompt_of(server)[1] == Message("assistant", "Yes", reasoning="hm")


def test_a_budget_of_thinking(serve: Serve) -> None:
    server = answering(serve, "<think>hm</think>Yes", THINK)
    ask(server, thinking={"type": "enabled", "budget_tokens": 40})
    limit = server.model.engine.submitted[0].thinking
    assert (limit.max_tokens, limit.end) == (40, b"</think>")


def test_thinking_that_is_not_to_be_read(serve: Serve) -> None:
    server = answering(serve, "<think>hm</think>Yes", THINK)
    reply = ask(server, thinking={"type": "adaptive", "display": "omitted"})
    assert (reply.content[0].type, reply.content[0].thinking) == ("thinking", "")
    assert reply.content[0].signature
    turns = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "more"}]
    ask(server, messages=turns)
    assert prompt_of(server)[1] == Message("assistant", "Yes")


def test_thinking_is_switched_where_the_template_has_a_switch(serve: Serve) -> None:
    server = answering(serve, "Yes", THINK)
    template, engine = server.model.template, server.model.engine
    template.reads |= {"enable_thinking"}
    for kind, on in (("adaptive", True), ("disabled", False)):
        ask(server, thinking={"type": kind})
        assert template.variables == {"enable_thinking": on}
    template.reads -= {"enable_thinking"}
    ask(server, thinking={"type": "disabled"})
    ask(server)
    assert template.variables == {}
    limits = [request.thinking for request in engine.submitted]
    assert [limit is None for limit in limits] == [True, True, False, True]
    assert limits[2].max_tokens == 0


def test_effort(serve: Serve) -> None:
    server = answering(serve, "Yes", THINK)
    server.model.template.reads |= {"reasoning_effort"}
    reply = ask(server, output_config={"effort": "low"})
    assert server.model.template.variables == {"reasoning_effort": "low"}
    assert not hasattr(reply, "warnings")
    reply = ask(server, output_config={"effort": "max"})
    assert server.model.template.variables == {"reasoning_effort": "high"}
    assert [one["param"] for one in reply.warnings] == ["output_config.effort"]
    assert "max" in reply.warnings[0]["message"]
    server.model.template.reads -= {"reasoning_effort"}
    reply = ask(server, output_config={"effort": "low"})
    [warning] = reply.warnings
    assert warning["message"].startswith("output_config.effort has no effect")


class Town(BaseModel):
    name: str
    people: int


def test_an_answer_that_is_parsed(serve: Serve) -> None:
    server = answering(serve, '{"name": "Köln", "people": 1000000}')
    reply = server.anthropic().messages.parse(model=MODEL, messages=HELLO, max_tokens=100, output_format=Town)
    assert reply.parsed_output == Town(name="Köln", people=1_000_000)
    constraint = server.model.engine.submitted[0].constraint
    assert constraint.kind == "json_schema"
    assert json.loads(constraint.text)["required"] == ["name", "people"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"metadata": {"user_id": "u"}}, "metadata"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 30}}, "thinking"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"tools": [TIME | {"input_examples": [{}]}]}, "tools"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
                    *HELLO,
                ]
            },
            "messages",
        ),
    ],
)
def test_what_has_no_effect_stands_in_warnings(serve: Serve, more: dict[str, Any], param: str) -> None:
    reply = ask(answering(serve, "x", HERMES), **more)
    assert [warning["param"] for warning in reply.warnings] == [param]


@pytest.mark.parametrize(
    "more",
    [
        {"service_tier": "auto"},
        {"service_tier": "standard_only"},
        {"cache_control": {"type": "ephemeral"}},
        {"speed": "standard"},
        {
            "extra_body": {
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
            }
        },
        {"extra_body": {"mcp_servers": [], "container": None}},
        {"tools": [TIME | {"type": "custom", "allowed_callers": ["direct"], "defer_loading": False}]},
        {"extra_headers": {"anthropic-beta": "a-beta,another"}},
        {"extra_headers": {"anthropic-version": anthropic.omit}},
        {"thinking": {"type": "disabled"}},
    ],
)
def test_what_asks_for_what_happens_anyway_is_taken(serve: Serve, more: dict[str, Any]) -> None:
    reply = ask(answering(serve, "x", HERMES), **more)
    assert reply.content[0].text == "x"
    assert not hasattr(reply, "warnings")


def test_a_count_of_tokens_is_what_the_message_has(serve: Serve) -> None:
    server = answering(serve, "x", HERMES)
    prompt: Any = {
        "model": MODEL,
        "system": "Be brief.",
        "messages": [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Go on"}],
        "tools": [WEATHER],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
    }
    client = server.anthropic()
    count = client.messages.count_tokens(**prompt).input_tokens
    usage = client.messages.create(max_tokens=9, **prompt).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens > 0
    assert len(server.model.engine.submitted) == 1


def test_models(serve: Serve) -> None:
    server = answering(serve, "x")
    client = server.anthropic()
    [model] = client.models.list()
    assert (model.type, model.id, model.max_input_tokens) == ("model", MODEL, 4096)
    assert model.created_at.year == 2023
    assert client.models.retrieve(MODEL) == model
    assert client.models.list(after_id=MODEL).data == []
    assert client.models.list(before_id=MODEL, limit=1).data == []
    page = client.models.list(limit=1)
    assert (page.first_id, page.last_id, page.has_more) == (MODEL, MODEL, False)
    for query in ({"limit": 0}, {"limit": 1001}, {"after_id": "other"}, {"before_id": "other"}):
        with pytest.raises(anthropic.BadRequestError, match=next(iter(query))):
            client.models.list(**query)
    assert [model.id for model in server.openai().models.list()] == [MODEL]
