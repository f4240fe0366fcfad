"""Streams of the Responses API: the events, in their order, with the official client's own checks of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running
from pydantic import TypeAdapter

from headrace.errors import EngineStopped

MODEL = "fake/model"
TIME: Any = {"type": "function", "name": "time"}
HERMES = "tools <tool_call>"
THINK = "<think></think>"
CALL = '<tool_call>\n{"name": "time", "arguments": {"zone": "UTC"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"zone": {"type": "string"}}}

Serve = Callable[..., Running]


def answering(serve: Serve, answer: str, source: str = "", **flags: Any) -> Running:
    return serve(FakeModel(engine=FakeEngine(answer), template=FakeTemplate(source)), **flags)


def stream(server: Running, **more: Any) -> list[Any]:
    body = {"model": MODEL, "input": "hello", "stream": True} | more
    return list(server.openai().responses.create(**body))


def kinds(events: list[Any]) -> list[str]:
    """Types of the events, runs of one type once."""
    names = [event.type.removeprefix("response.") for event in events]
    return [name for name, before in zip(names, [None, *names], strict=False) if name != before]


MESSAGE = [
    "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
    "output_item.done",
]  # fmt: skip
REASONING = [name.replace("output_text", "reasoning_text") for name in MESSAGE]
FUNCTION_CALL = [
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
]  # fmt: skip


def test_a_message(server: Running) -> None:
    events = stream(server)
    assert kinds(events) == ["created", "in_progress", *MESSAGE, "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == "a bé c€ d. " == events[-1].response.output_text
    assert {(event.output_index, event.content_index) for event in deltas} == {(0, 0)}
    assert {event.item_id for event in deltas} == {events[-1].response.output[0].id}
    first, last = events[0].response, events[-1].response
    assert (first.status, first.output, first.usage) == ("in_progress", [], None)
    assert (last.status, last.id, last.usage.output_tokens) == ("completed", first.id, 11)


def test_the_stream_says_what_the_whole_response_says(serve: Serve) -> None:
    server = answering(serve, f"<think>hm</think>Well. {CALL}\n{CALL}", HERMES + THINK)
    tools = [TIME | {"parameters": PARAMETERS}]
    whole = server.openai().responses.create(model=MODEL, input="hello", tools=tools)
    streamed = stream(server, tools=tools)[-1].response
    hidden = {"id", "created_at", "completed_at", "call_id"}

    def shown(response: Any) -> Any:
        body = response.to_dict()
        for one in (body, *body["output"]):
            for name in hidden:
                one.pop(name, None)
        return body

    assert shown(streamed) == shown(whole)


def test_reasoning_text_and_calls_are_items_in_a_row(serve: Serve) -> None:
    server = answering(serve, f"<think>hm</think>Well. {CALL}\n{CALL}", HERMES + THINK)
    events = stream(server, tools=[TIME | {"parameters": PARAMETERS}])
    items = [*REASONING, *MESSAGE, *FUNCTION_CALL, *FUNCTION_CALL]
    assert kinds(events) == ["created", "in_progress", *items, "completed"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2, 3]
    assert [event.item.type for event in done] == ["reasoning", "message", "function_call", "function_call"]
    assert [event.item.id for event in done] == [item.id for item in events[-1].response.output]
    assert {event.item.status for event in done} == {"completed"}
    assert len({event.item.call_id for event in done[2:]}) == 2
    arguments = "".join(
        event.delta
        for event in events
        if event.type == "response.function_call_arguments.delta" and event.output_index == 3
    )
    assert json.loads(arguments) == {"zone": "UTC"}


def test_text_after_a_call_is_another_message(serve: Serve) -> None:
    """A call that turns out to be none, after it had begun to be shown."""
    server = answering(serve, '<tool_call>{"name": "time", "arguments": {bad}}</tool_call>', HERMES)
    events = stream(server, tools=[TIME])
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, item.status) for item in done][-1] == ("message", "completed")
    assert all(item.status == "incomplete" for item in done if item.type == "function_call")
    assert [item.type for item in events[-1].response.output] == ["message"]


def test_a_response_that_is_cut_ends_as_incomplete(server: Running) -> None:
    events = stream(server, max_output_tokens=3)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-2].item.status == "incomplete"


def test_a_response_that_fails_ends_as_failed(server: Running) -> None:
    server.model.engine.failure = EngineStopped("the engine stopped: send it again")
    events = stream(server)
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code == "server_error"
    assert events[-1].response.error.message == "the engine stopped: send it again"
    kept = server.openai().responses.retrieve(events[0].response.id)
    assert (kept.status, kept.error.message) == ("failed", "the engine stopped: send it again")


def test_logprobs_go_with_their_text(server: Running) -> None:
    include = ["message.output_text.logprobs"]
    events = stream(server, include=include, top_logprobs=1, max_output_tokens=3)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [[entry.token for entry in event.logprobs] for event in deltas] == [["a"], [" "], ["b"]]
    [done] = [event for event in events if event.type == "response.output_text.done"]
    assert [entry.token for entry in done.logprobs] == ["a", " ", "b"]


def test_the_helper_of_the_sdk_follows(serve: Serve) -> None:
    server = answering(serve, f"<think>hm</think>Well. {CALL}", HERMES + THINK)
    tools = [TIME | {"parameters": PARAMETERS}]
    with server.openai().responses.stream(model=MODEL, input="hello", tools=tools) as events:
        snapshots = [e.snapshot for e in events if e.type == "response.output_text.delta"]
        response = events.get_final_response()
    assert snapshots[-1] == response.output_text == "Well."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]


def test_the_bytes_of_a_stream(server: Running) -> None:
    from openai.types.responses import ResponseStreamEvent

    body = {"input": "hello", "stream": True, "max_output_tokens": 2}
    reply = server.http().post("/v1/responses", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *parts, end = reply.text.split("\n\n")
    assert end == "" and "[DONE]" not in reply.text
    strict: Any = TypeAdapter(ResponseStreamEvent)
    for part in parts:
        name, data = part.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        strict.validate_python(content)


def test_warnings_stand_in_the_stream(server: Running) -> None:
    events = stream(server, user="u")
    assert events[0].response.warnings[0]["param"] == events[-1].response.warnings[0]["param"] == "user"


def test_the_response_is_announced_before_anything_is_computed(server: Running) -> None:
    server.model.engine.go.clear()
    events = server.openai().responses.create(model=MODEL, input="hello", stream=True)
    assert [next(events).type for _ in range(2)] == ["response.created", "response.in_progress"]
    server.model.engine.go.set()
    assert next(events).type == "response.output_item.added"


def test_a_client_that_leaves_stops_its_response(server: Running) -> None:
    client = server.openai()
    server.model.engine.pause_s = 0.02
    server.model.engine.answer = "a" * 3000
    events = client.responses.create(model=MODEL, input="hello", stream=True)
    first = next(iter(events))
    events.close()
    assert server.model.engine.cancelled_event.wait(10)
    kept = client.responses.retrieve(first.response.id)
    while kept.status == "in_progress":
        kept = client.responses.retrieve(first.response.id)
    assert kept.status == "cancelled"


@pytest.mark.parametrize("answer", ["", "   "])
def test_an_answer_of_nothing_has_a_message_of_nothing(serve: Serve, answer: str) -> None:
    server = answering(serve, f"<think>hm</think>{answer}" if answer else "<think></think>", THINK)
    events = stream(server)
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == ""
