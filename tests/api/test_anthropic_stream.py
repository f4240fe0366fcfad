"""Streams of messages through Anthropic's official client: order, blocks, ends, failures, leaving."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running
from test_anthropic_messages import CALL, HELLO, HERMES, MODEL, THINK, TIME, TIME_CALL, WEATHER, Serve

from headrace.errors import NumericalError

EVERYTHING = f"<think>\nhm</think>\n\nLet me see. {CALL}\n{TIME_CALL}"
BODY: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 400}


def answering(serve: Serve, answer: str, source: str = "") -> Running:
    return serve(FakeModel(engine=FakeEngine(answer, ends=True), template=FakeTemplate(source)))


def events_of(server: Running, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events as they are written."""
    with server.http().stream("POST", "/v1/messages", json=BODY | {"stream": True} | more) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        *parts, rest = reply.read().decode().split("\n\n")
    assert rest == ""
    found: list[tuple[str, dict[str, Any]]] = []
    for part in parts:
        name, data = part.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(body["type"] == name for name, body in found)
    return found


def test_the_order_of_events(serve: Serve) -> None:
    server = answering(serve, EVERYTHING, HERMES + THINK)
    tools = [WEATHER, TIME]
    events = events_of(server, tools=tools, metadata={"user_id": "u"})
    runs = [
        (name, body.get("index"), body["delta"]["type"] if "index" in body and "delta" in body else None)
        for name, body in events
    ]
    once = [run for place, run in enumerate(runs) if place == 0 or runs[place - 1] != run]
    delta = "content_block_delta"
    assert once == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, None),
        (delta, 0, "thinking_delta"),
        (delta, 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        (delta, 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        (delta, 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, None),
        (delta, 3, "input_json_delta"),
        ("content_block_stop", 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    message = events[0][1]["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    assert message["usage"]["input_tokens"] > 0 and message["usage"]["output_tokens"] == 0
    assert [warning["param"] for warning in message["warnings"]] == ["metadata"]
    end = events[-2][1]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == len(EVERYTHING.encode()) - len("ö".encode()) + 1


@pytest.mark.parametrize(
    ("answer", "more"),
    [
        (EVERYTHING, {}),
        ("Plain words.", {}),
        (" ", {}),
        (f"{CALL} and then {TIME_CALL} done", {}),
        (EVERYTHING, {"max_tokens": 9}),
        (EVERYTHING, {"thinking": {"type": "adaptive", "display": "omitted"}}),
        (EVERYTHING, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
def test_the_clients_accumulator_gets_the_whole_message(
    serve: Serve, answer: str, more: dict[str, Any]
) -> None:
    server = answering(serve, answer, HERMES + THINK)
    client = server.anthropic()
    body = BODY | {"tools": [WEATHER, TIME]} | more
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    same = {"id": True, "content": {"__all__": {"id", "parsed_output"}}}
    assert streamed.model_dump(exclude=same) == whole.model_dump(exclude=same)
    assert streamed.stop_reason == whole.stop_reason


def test_the_text_of_a_stream(serve: Serve) -> None:
    server = answering(serve, "a bé c€ d.")
    with server.anthropic().messages.stream(**BODY) as stream:
        assert "".join(stream.text_stream) == "a bé c€ d."
        assert stream.get_final_text() == "a bé c€ d."


def test_a_call_that_fails_is_closed_and_its_text_follows(serve: Serve) -> None:
    broken = '<tool_call>{"name": "weather", "arguments": {"town": "a", bad}}</tool_call>'
    server = answering(serve, broken, HERMES)
    with server.anthropic().messages.stream(**BODY, tools=[WEATHER]) as stream:
        message = stream.get_final_message()
    assert message.content[-1].text == broken
    assert message.stop_reason == "end_turn"


def test_a_failure_in_the_middle(serve: Serve) -> None:
    server = answering(serve, "some words")
    server.model.engine.failure = NumericalError("the logits are not finite")
    names = [name for name, _ in events_of(server)]
    assert names[-1] == "error" and "message_stop" not in names
    with (
        pytest.raises(anthropic.APIStatusError, match="not finite") as caught,
        server.anthropic().messages.stream(**BODY) as stream,
    ):
        stream.until_done()
    error = caught.value
    assert (error.type, error.error_code) == ("api_error", "numerical_error")
    assert error.body["request_id"] == error.request_id


@pytest.mark.parametrize("streamed", [True, False])
def test_leaving_cancels(serve: Serve, streamed: bool) -> None:
    server = serve(FakeModel())
    engine = server.model.engine
    engine.go.clear()
    client = server.anthropic(timeout=0.5)
    if streamed:
        with client.messages.stream(**BODY) as stream:
            assert next(iter(stream)).type == "message_start"
    else:
        with pytest.raises(anthropic.APITimeoutError):
            client.messages.create(**BODY)
    client.close()
    assert engine.cancelled_event.wait(10)
    assert engine.cancelled == [engine.submitted[0].request_id]
    engine.go.set()


def test_32_streams_at_a_time(serve: Serve) -> None:
    server = answering(serve, "a bé c€ d.")

    async def one(client: anthropic.AsyncAnthropic, number: int) -> str:
        async with client.messages.stream(**BODY | {"max_tokens": 1 + number % 10}) as stream:
            return await stream.get_final_text()

    async def all_of_them() -> list[str]:
        limits = httpx2.Limits(max_connections=None)
        http = httpx2.AsyncClient(trust_env=False, limits=limits, timeout=20)
        options: Any = {"api_key": "none", "max_retries": 0, "http_client": http}
        async with anthropic.AsyncAnthropic(base_url=server.url, **options) as client:
            return await asyncio.gather(*(one(client, number) for number in range(32)))

    for number, text in enumerate(asyncio.run(all_of_them())):
        assert text == "a bé c€ d."[: 1 + number % 10]
