"""POST /v1/responses, driven by the official client: items in and out, what is refused and by which name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from fake import CONTEXT_LENGTH, FakeEngine, FakeModel, FakeTemplate, overloaded
from in_process import Running, running_server
from pydantic import BaseModel, Field

from headrace.chat.messages import Message, ToolCall
from headrace.errors import EngineStopped
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions

MODEL = "fake/model"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    "strict": None,
}
TIME: Any = {"type": "function", "name": "time"}
HERMES = "tools <tool_call>"
THINK = "<think></think>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'

Serve = Callable[..., Running]


def answering(serve: Serve, answer: str, source: str = HERMES, **flags: Any) -> Running:
    return serve(FakeModel(engine=FakeEngine(answer), template=FakeTemplate(source)), **flags)


def ask(server: Running, **more: Any) -> Any:
    """`seed` is no parameter of the client's."""
    if "seed" in more:
        more["extra_body"] = {"seed": more.pop("seed")}
    return server.openai().responses.create(**({"model": MODEL, "input": "hello"} | more))


def prompt_of(server: Running) -> str:
    return bytes(server.model.engine.submitted[-1].prompt).decode()


def messages_seen(server: Running) -> list[list[Message]]:
    """What the template is asked to render from now on."""
    seen: list[list[Message]] = []
    render = server.model.template.render
    server.model.template.render = lambda messages, **more: seen.append(messages) or render(messages, **more)
    return seen


def test_a_whole_response(server: Running) -> None:
    reply = ask(server, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5, seed=3)
    assert prompt_of(server) == "system: Be kind.\nuser: hello\nassistant:"
    assert (reply.status, reply.output_text, reply.object) == ("completed", "a bé c€ d. ", "response")
    assert reply.completed_at is not None
    [message] = reply.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.id.startswith("msg_") and reply.id.startswith("resp_")
    assert (reply.instructions, reply.metadata, reply.temperature) == ("Be kind.", {"a": "b"}, 0.5)
    assert (reply.parallel_tool_calls, reply.tool_choice, reply.tools) == (True, "auto", [])
    assert (reply.error, reply.incomplete_details, reply.truncation) == (None, None, "disabled")
    assert reply.text.format.type == "text"
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(prompt_of(server)), 11)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)
    assert "warnings" not in reply.model_extra
    assert server.model.engine.submitted[-1].params.seed == 3


def test_a_response_that_is_cut_says_why(server: Running) -> None:
    reply = ask(server, max_output_tokens=3)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.output_text, reply.output[0].status) == ("a b", "incomplete")


def test_messages_in_all_their_shapes(server: Running) -> None:
    ask(
        server,
        input=[
            {"role": "developer", "content": "D"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
            {"role": "assistant", "content": "c", "phase": "final_answer"},
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "d", "annotations": [], "logprobs": []},
                    {"type": "refusal", "refusal": "e"},
                ],
            },
            {"role": "user", "content": "f"},
        ],
    )
    lines = ["developer: D", "user: a\nb", "assistant: c", "assistant: d\ne", "user: f", "assistant:"]
    assert prompt_of(server) == "\n".join(lines)


def test_a_call_is_an_item_and_its_output_goes_back(serve: Serve) -> None:
    server = answering(serve, "Let me see. " + CALL)
    reply = ask(server, tools=[WEATHER])
    message, call = reply.output
    assert (message.content[0].text, message.status) == ("Let me see.", "completed")
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments) == {"town": "Köln"}
    assert call.id.startswith("fc_") and call.call_id.startswith("call_")
    [tool] = reply.tools
    assert (tool.name, tool.strict, tool.description) == ("weather", False, "Tells the weather")
    seen = messages_seen(server)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    ask(server, input=[{"role": "user", "content": "hello"}, *reply.output, output], tools=[WEATHER])
    user, assistant, tool = seen[-1]
    assert user == Message("user", "hello")
    called = ToolCall(call.call_id, "weather", call.arguments)
    assert assistant == Message("assistant", "Let me see.", tool_calls=(called,))
    assert tool == Message("tool", "Rain", name="weather", tool_call_id=call.call_id)


def test_parallel_calls(serve: Serve) -> None:
    server = answering(serve, f"{CALL}\n{TIME_CALL}")
    reply = ask(server, tools=[WEATHER, TIME])
    assert [call.name for call in reply.output] == ["weather", "time"]
    assert len({call.call_id for call in reply.output}) == 2
    one = ask(server, tools=[WEATHER, TIME], parallel_tool_calls=False)
    assert [call.name for call in one.output] == ["weather"] and one.parallel_tool_calls is False


def test_what_is_no_call_is_text(serve: Serve) -> None:
    answer = '<tool_call>{"name": "weather", "arguments": {bad}}</tool_call>'
    reply = ask(answering(serve, answer), tools=[WEATHER])
    assert [item.type for item in reply.output] == ["message"]
    assert reply.output_text == answer


def test_a_call_that_is_cut_is_incomplete(serve: Serve) -> None:
    reply = ask(answering(serve, CALL), tools=[WEATHER], max_output_tokens=60)
    [call] = reply.output
    assert (reply.status, call.status) == ("incomplete", "incomplete")
    assert '{"town": "Köln"}'.startswith(call.arguments)


def test_choices_of_tools(serve: Serve) -> None:
    server = answering(serve, CALL + TIME_CALL)
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "time"}]}
    reply = ask(server, tools=[WEATHER, TIME], tool_choice=allowed)
    assert [item.name for item in reply.output if item.type == "function_call"] == ["time"]
    assert reply.tool_choice.mode == "auto"
    none = ask(server, tools=[WEATHER], tool_choice="none")
    assert server.model.template.tools is None
    assert [item.type for item in none.output] == ["message"]


def test_a_named_tool_must_be_called(serve: Serve) -> None:
    server = answering(serve, TIME_CALL)
    ask(server, tools=[WEATHER, TIME], tool_choice={"type": "function", "name": "time"})
    grammar = server.model.engine.submitted[-1].constraint.text
    assert "time" in grammar and "weather" not in grammar


def test_reasoning_is_an_item_and_goes_back(serve: Serve) -> None:
    server = answering(serve, "<think>\nhm</think>\n\nYes", THINK)
    reply = ask(server, reasoning={"effort": "low", "summary": "auto"})
    thought, message = reply.output
    assert (thought.type, thought.summary, thought.status) == ("reasoning", [], "completed")
    assert [part.text for part in thought.content] == ["hm"]
    assert message.content[0].text == "Yes"
    assert reply.usage.output_tokens_details.reasoning_tokens == len("> hm</think>")
    assert [warning["param"] for warning in reply.warnings] == ["reasoning.summary", "reasoning.effort"]
    seen = messages_seen(server)
    ask(server, input=[{"role": "user", "content": "a"}, *reply.output, {"role": "user", "content": "b"}])
    assert seen[-1] == [
        Message("user", "a"),
        Message("assistant", "Yes", reasoning="hm"),
        Message("user", "b"),
    ]


def test_effort_reaches_a_template_that_reads_it(serve: Serve) -> None:
    server = answering(serve, "Yes", THINK)
    server.model.template.reads |= {"reasoning_effort"}
    reply = ask(server, reasoning={"effort": "high"})
    assert server.model.template.variables == {"reasoning_effort": "high"}
    assert reply.reasoning.effort == "high" and "warnings" not in reply.model_extra


def test_a_budget_of_reasoning(serve: Serve) -> None:
    server = answering(serve, "Yes", THINK)
    ask(server, extra_body={"thinking_token_budget": 5})
    assert server.model.engine.submitted[-1].thinking.max_tokens == 5
    with pytest.raises(openai.BadRequestError) as caught:
        ask(answering(serve, "Yes"), extra_body={"thinking_token_budget": 5})
    assert caught.value.param == "thinking_token_budget"


def test_logprobs(server: Running) -> None:
    reply = ask(server, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4)
    entries = reply.output[0].content[0].logprobs
    assert [entry.token for entry in entries] == ["a", " ", "b", "bytes:\\xc3", "bytes:\\xa9"]
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 5
    assert ask(server).output[0].content[0].logprobs == []


def test_what_has_no_effect_is_a_warning(server: Running) -> None:
    reply = ask(
        server,
        input=[{"role": "assistant", "content": "x", "phase": "commentary"}],
        user="u",
        safety_identifier="s",
        max_tool_calls=3,
        service_tier="scale",
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content"],
        extra_body={"prompt_cache_retention": "24h"},
    )
    names = {warning["param"] for warning in reply.warnings}
    assert names == {
        "user", "safety_identifier", "max_tool_calls", "service_tier", "text.verbosity",
        "include.reasoning.encrypted_content", "prompt_cache_retention", "input.phase",
    }  # fmt: skip
    assert (reply.user, reply.safety_identifier, reply.max_tool_calls) == ("u", "s", 3)
    assert reply.service_tier == "default"


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"unknown": 1}, "unknown", "unknown parameter"),
        ({"messages": []}, "messages", "send input"),
        ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
        ({"n": 2}, "n", "one request"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "reasoning.effort"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
        ({"moderation": {"model": "m"}}, "moderation", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"background": True, "store": False}, "background", "store"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options", "stream: true"),
        ({"include": ["x"]}, "include", "include"),
        ({"metadata": {"a": 1}}, "metadata", "string"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16"),
        ({"max_output_tokens": 0}, "max_output_tokens", ">= 1, not 0"),
        ({"top_logprobs": 21}, "top_logprobs", "20"),
        ({"reasoning": {"x": 1}}, "reasoning", "unknown field"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format", "schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format", "json_schema"),
        ({"tools": [{"type": "web_search"}]}, "tools", "'web_search': there are function, mcp, sql"),
        ({"tools": [{"type": "sql"}, {"type": "web_search"}]}, "tools", "tools[1].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "a b"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools", "'function'"),
        ({"tools": [{"type": "function", "name": "a", "defer_loading": True}]}, "tools", "defer_loading"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "'x'"),
        ({"tools": [TIME], "tool_choice": {"type": "web_search_preview"}}, "tool_choice", "not one of"),
        ({"input": []}, "input", "at least one"),
        ({"input": 3}, "input", "neither"),
        ({"input": ["x"]}, "input", "input[0] is not an object"),
        (item(role="user", content=[{"type": "input_image", "image_url": "x"}]), "input", "input_image"),
        (item(role="user", content=[{"type": "input_file", "file_id": "x"}]), "input", "text only"),
        (item(role="robot", content="x"), "input", "role"),
        (item(role="user", content="x", mood="y"), "input", "mood"),
        (item(type="web_search_call", id="x"), "input", "web_search_call"),
        (item(type="function_call_output", call_id="x", output="y"), "input", "no function_call"),
        (item(type="reasoning", summary=[], encrypted_content="x"), "input", "encrypted_content"),
        (item(type="item_reference", id="msg_x"), "input", "msg_x"),
        (item(id="msg_y"), "input", "msg_y"),
    ],
)
def test_what_cannot_be_honored_is_a_400(serve: Serve, body: dict[str, Any], param: str, words: str) -> None:
    server = answering(serve, "x")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, extra_body=body)
    assert caught.value.param == param
    assert words in caught.value.message
    assert server.model.engine.submitted == []


def test_errors_have_their_classes(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, input="x" * CONTEXT_LENGTH)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        ask(server, model="other")
    server.model.engine.refusal = overloaded()
    for more in ({}, {"stream": True}, {"background": True}):
        with pytest.raises(openai.InternalServerError) as busy:
            ask(server, **more)
        assert busy.value.status_code == 503
    server.model.engine.refusal = None
    server.model.engine.failure = EngineStopped("gone")
    with pytest.raises(openai.InternalServerError):
        ask(server)


def test_tokens_of_the_input(server: Running) -> None:
    client = server.openai()
    counted = client.responses.input_tokens.count(model=MODEL, input="hello", instructions="Be kind.")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == len(b"system: Be kind.\nuser: hello\nassistant:")
    first = ask(server)
    counted = client.responses.input_tokens.count(
        model=MODEL, input=[{"role": "user", "content": "x"}], previous_response_id=first.id
    )
    whole = ask(server, input="x", previous_response_id=first.id)
    assert counted.input_tokens == whole.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="personality"):
        client.responses.input_tokens.count(model=MODEL, input="x", personality="friendly")


class Mood(BaseModel):
    """What the model is asked to fill in."""

    mood: Literal["glad", "sad"]
    years: int = Field(ge=0, le=99)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=8, max_batch_tokens=128))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def real(model: LoadedModel) -> Iterator[Running]:
    with running_server(model) as running:
        yield running


def test_a_conversation_with_the_model_that_ships(real: Running) -> None:
    options = {"model": real.model.name, "max_output_tokens": 12, "seed": 1}
    first = ask(real, input="Tell me of the sea.", **options)
    again = ask(real, input="Tell me of the sea.", **options)
    assert first.output_text == again.output_text != ""
    kept = ask(real, input="And then?", previous_response_id=first.id, **options)
    whole: Any = [{"role": "user", "content": "Tell me of the sea."}, *first.output]
    sent = ask(real, input=[*whole, {"role": "user", "content": "And then?"}], store=False, **options)
    assert kept.output_text == sent.output_text
    assert kept.usage.input_tokens == sent.usage.input_tokens


def test_the_sdk_parses_its_own_models(real: Running) -> None:
    client, name = real.openai(), real.model.name
    options: Any = {"model": name, "input": "How are you?", "text_format": Mood}
    options |= {"max_output_tokens": 200, "extra_body": {"seed": 4}}
    parsed = client.responses.parse(**options)
    assert isinstance(parsed.output_parsed, Mood)
    assert parsed.text.format.type == "json_schema"
    with client.responses.stream(**options) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Mood)


def test_a_json_object(real: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    form: Any = {"type": "json_schema", "name": "a", "schema": schema | {"additionalProperties": False}}
    reply = real.openai().responses.create(model=real.model.name, input="x", text={"format": form})
    assert json.loads(reply.output_text) == {"a": 1}
