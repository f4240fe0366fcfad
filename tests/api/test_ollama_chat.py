"""/api/chat, driven by Ollama's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ollama
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running

MODEL = "fake/model"
HELLO: Any = [{"role": "user", "content": "hello"}]
HERMES = "tools <tool_call>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'

Serve = Callable[..., Running]


def weather(town: str) -> str:
    """The weather of a town.

    Args:
      town: Its name.
    """
    return f"rain in {town}"


TOOLS: Any = [weather, {"type": "function", "function": {"name": "time"}}]


class RecordingTemplate(FakeTemplate):
    """Keeps the messages that it was given."""

    def render(self, messages: list[Any], **more: Any) -> str:
        self.messages = messages
        return super().render(messages, **more)


def answering(serve: Serve, answer: str, source: str = HERMES) -> Running:
    return serve(FakeModel(engine=FakeEngine(answer), template=RecordingTemplate(source)))


def chat(server: Running, messages: Any = HELLO, **more: Any) -> Any:
    return server.ollama().chat(model=MODEL, messages=messages, **more)


def refused(server: Running, messages: Any = HELLO, **more: Any) -> str:
    with pytest.raises(ollama.ResponseError) as caught:
        chat(server, messages, **more)
    assert caught.value.status_code == 400
    return caught.value.error


def test_a_whole_reply(server: Running) -> None:
    reply = chat(server, options={"num_predict": 4})
    assert (reply.message.role, reply.message.content) == ("assistant", "a bé")
    assert (reply.done_reason, reply.prompt_eval_count, reply.eval_count) == ("length", 22, 4)
    assert reply.message.thinking is None and reply.message.tool_calls is None


def test_a_stream(server: Running) -> None:
    parts = list(chat(server, options={"num_predict": 4}, stream=True))
    assert "".join(part.message.content for part in parts) == "a bé"
    assert [part.done for part in parts] == [False] * 4 + [True]


def test_many_async_streams_end_once_each(server: Running) -> None:
    async def one(client: ollama.AsyncClient, number: int) -> tuple[str, int]:
        stream = await client.chat(
            model=MODEL, messages=HELLO, options={"num_predict": 5 + number % 7}, stream=True
        )
        parts = [part async for part in stream]
        return "".join(part.message.content for part in parts), sum(part.done for part in parts)

    async def all_of_them() -> list[tuple[str, int]]:
        client = server.async_ollama()
        found = await asyncio.gather(*(one(client, number) for number in range(32)))
        await client.close()
        return found

    for number, found in enumerate(asyncio.run(all_of_them())):
        assert found == ("a bé c€ d. "[: 5 + number % 7], 1)


def test_a_call_has_its_arguments_as_an_object(serve: Serve) -> None:
    server = answering(serve, f"Let me see. {CALL}\n{TIME_CALL}")
    message = chat(server, tools=TOOLS).message
    assert message.content == "Let me see."
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert calls == [("weather", {"town": "Köln"}), ("time", {})]
    [described, _] = server.model.template.tools
    assert described["function"]["parameters"]["properties"]["town"]["type"] == "string"


def test_streamed_calls_are_whole(serve: Serve) -> None:
    parts = list(chat(answering(serve, f"Well. {CALL}\n{TIME_CALL}"), tools=TOOLS, stream=True))
    calls = [call.function for part in parts for call in part.message.tool_calls or []]
    assert [(call.name, call.arguments) for call in calls] == [("weather", {"town": "Köln"}), ("time", {})]
    assert "".join(part.message.content for part in parts) == "Well."
    assert parts[-1].done_reason == "stop"


def test_a_call_that_is_cut_short_is_left_out_and_said(serve: Serve) -> None:
    server = answering(serve, CALL)
    body = {"model": MODEL, "messages": HELLO, "options": {"num_predict": 55}, "stream": False}
    body["tools"] = [{"type": "function", "function": {"name": "weather"}}]
    reply = server.http().post("/api/chat", json=body).json()
    assert "tool_calls" not in reply["message"] and reply["done_reason"] == "length"
    assert "within a call of weather" in reply["warnings"][0]["message"]


def test_a_loop_of_tools(serve: Serve) -> None:
    server = answering(serve, f"{CALL}\n{CALL}\n{TIME_CALL}")
    messages: list[Any] = [*HELLO]
    message = chat(server, messages, tools=TOOLS).message
    messages.append(message)
    for call in (message.tool_calls[2], *message.tool_calls[:2]):
        messages.append({"role": "tool", "tool_name": call.function.name, "content": "rain"})
    chat(server, messages, tools=TOOLS, options={"num_predict": 1})
    asked, *results = server.model.template.messages[1:]
    assert asked.role == "assistant"
    assert [call.arguments for call in asked.tool_calls] == ['{"town": "Köln"}', '{"town": "Köln"}', "{}"]
    assert [result.name for result in results] == ["time", "weather", "weather"]
    ids = [call.id for call in asked.tool_calls]
    assert len(set(ids)) == 3
    assert [result.tool_call_id for result in results] == [ids[2], ids[0], ids[1]]


def test_thinking_goes_out_and_comes_back(serve: Serve) -> None:
    server = answering(serve, "<think>hm</think>ok", "<think></think> enable_thinking")
    message = chat(server).message
    assert (message.thinking, message.content) == ("hm", "ok")
    chat(server, [*HELLO, message, *HELLO], options={"num_predict": 1})
    assert server.model.template.messages[1].reasoning == "hm"


@pytest.mark.parametrize(
    ("reads", "think", "variables"),
    [
        ({"enable_thinking"}, True, {"enable_thinking": True}),
        ({"enable_thinking"}, False, {"enable_thinking": False}),
        ({"thinking"}, False, {"thinking": False}),
        ({"reasoning_effort"}, "high", {"reasoning_effort": "high"}),
        ({"reasoning_effort"}, True, {}),
        ({"enable_thinking"}, None, {}),
    ],
)
def test_think_is_told_to_the_template(serve: Serve, reads: set[str], think: Any, variables: Any) -> None:
    server = answering(serve, "ok", "<think></think>")
    server.model.template.reads |= reads
    chat(server, think=think)
    assert server.model.template.variables == variables


def test_think_that_cannot_be_done(serve: Serve) -> None:
    plain = answering(serve, "ok", "")
    assert "does not support thinking" in refused(plain, think=True)
    assert chat(plain, think=False).message.content == "ok"
    thinker = answering(serve, "ok", "<think></think>")
    assert "without levels" in refused(thinker, think="high")
    assert "think is 'much'" in refused(thinker, think="much")
    body = {"model": MODEL, "messages": HELLO, "think": False, "stream": False}
    reply = thinker.http().post("/api/chat", json=body).json()
    assert "warnings" not in reply  # without a switch, a budget of no tokens ends the reasoning
    budget = thinker.model.engine.submitted[-1].thinking
    assert budget is not None and budget.max_tokens == 0


def test_a_last_message_of_the_assistant_is_continued(server: Running) -> None:
    chat(server, [*HELLO, {"role": "assistant", "content": "so"}], options={"num_predict": 1})
    assert bytes(server.model.engine.submitted[0].prompt) == b"user: hello\nassistant: so"


def test_no_messages_load_the_model(server: Running) -> None:
    reply = server.ollama().chat(model=MODEL)
    assert (reply.done_reason, reply.message.content) == ("load", "")
    unload = {"model": MODEL, "messages": [], "keep_alive": 0}
    reply = server.http().post("/api/chat", json=unload)
    assert reply.status_code == 400 and "stays loaded" in reply.json()["error"]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "user", "content": "x", "images": ["aGk="]}], "messages[0].images cannot be read"),
        ([{"role": "nobody", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "tool_name": "f"}], "messages[0].tool_name"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function is missing"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
            "arguments is not an object",
        ),
    ],
)
def test_messages_that_are_wrong_are_named(server: Running, messages: Any, said: str) -> None:
    reply = server.http().post("/api/chat", json={"model": MODEL, "messages": messages})
    assert reply.status_code == 400
    assert said in reply.json()["error"]


def test_tools_of_a_model_that_knows_none(server: Running) -> None:
    assert "does not know tools" in refused(server, tools=TOOLS)


def test_a_model_without_a_template_cannot_chat(serve: Serve) -> None:
    assert "has no chat template" in refused(serve(FakeModel(template=None)))


def test_a_format_starts_after_the_reasoning(serve: Serve) -> None:
    server = answering(serve, "hm</think>{}", "<think></think>")
    server.model.template.tail = "<think>"
    chat(server, format="json")
    constraint = server.model.engine.submitted[0].constraint
    assert (constraint.kind, constraint.after) == ("json_object", "</think>")
