"""A remote model on every surface: OpenAI's chat, completions, responses, Anthropic's, Ollama's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_provider import HELLO, Exchange, Gateway, delta, events, say, usage

ASK = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = (
    delta(role="assistant", content=None, reasoning_content="Think"),
    delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": ""}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '"Rome"}'}}]),
    delta(
        tool_calls=[
            {"index": 1, "id": "call_2", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
        ]
    ),
    delta(finish="tool_calls"),
    usage(9, 7, completion_tokens_details={"reasoning_tokens": 2}),
)


def test_openai_chat(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(say(*HELLO, usage(5, 3)))
    client = server.openai()
    whole = client.chat.completions.with_raw_response.create(
        model="far", messages=[{"role": "user", "content": "hi"}], temperature=0
    )
    assert whole.headers["x-headrace-target"] == "far" and whole.headers["x-headrace-attempts"] == "1"
    reply = whole.parse()
    assert reply.choices[0].message.content == "Hello" and reply.choices[0].finish_reason == "stop"
    assert reply.model == "far" and reply.usage and reply.usage.prompt_tokens == 5
    chunks = list(
        client.chat.completions.create(
            model="far",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
    assert [c.choices[0].delta.role for c in chunks if c.choices].count("assistant") == 1
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 3
    assert len(provider.exchanges) == 2 and provider.exchanges[0].body["model"] == "far-1"


def test_tools_and_reasoning_of_openai_chat(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(say(*CALL))
    reply = server.openai().chat.completions.create(
        model="far", messages=[{"role": "user", "content": "hi"}], tools=[TOOL], reasoning_effort="low"
    )
    message: Any = reply.choices[0].message
    assert [(c.id, c.function.arguments) for c in message.tool_calls] == [
        ("call_1", '{"city":"Rome"}'),
        ("call_2", '{"city":"Bonn"}'),
    ]
    assert message.reasoning == "Think" and reply.choices[0].finish_reason == "tool_calls"
    assert reply.usage.completion_tokens_details.reasoning_tokens == 2
    assert provider.exchanges[0].body["reasoning_effort"] == "low"
    assert provider.exchanges[0].body["tools"][0]["function"]["name"] == "weather"


def test_responses(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(say(*CALL))
    client = server.openai()
    tool = {"type": "function", **TOOL["function"]}
    reply = client.responses.create(model="far", input="hi", tools=[tool])
    assert [item.type for item in reply.output] == ["reasoning", "function_call", "function_call"]
    with client.responses.stream(model="far", input="hi", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        assert kinds[-1] == "response.completed" and kinds.count("response.completed") == 1
        assert stream.get_final_response().usage.input_tokens == 9


def test_anthropic(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(say(*CALL), say(*HELLO, usage(5, 3)))
    client = server.anthropic()
    tool = {"name": "weather", "input_schema": TOOL["function"]["parameters"]}
    messages = [{"role": "user", "content": "hi"}]
    reply = client.messages.create(model="far", max_tokens=50, messages=messages, tools=[tool])
    assert [block.type for block in reply.content] == ["thinking", "tool_use", "tool_use"]
    assert reply.stop_reason == "tool_use" and reply.usage.input_tokens == 9
    with client.messages.stream(model="far", max_tokens=50, messages=messages) as stream:
        assert "".join(stream.text_stream) == "Hello"
        assert stream.get_final_message().usage.output_tokens == 3
    assert provider.exchanges[0].body["max_tokens"] == 50


def test_ollama(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(say(*CALL), say(*HELLO, usage(5, 3)))
    client = server.ollama()
    reply = client.chat(model="far", messages=[{"role": "user", "content": "hi"}], tools=[TOOL])
    assert [dict(c.function.arguments) for c in reply.message.tool_calls] == [
        {"city": "Rome"},
        {"city": "Bonn"},
    ]
    assert reply.message.thinking == "Think" and reply.prompt_eval_count == 9
    lines = list(client.generate(model="far", prompt="hi", stream=True))
    assert "".join(line.response for line in lines) == "Hello" and lines[-1].done
    assert "far" in [one.model for one in client.list().models]


def test_completions(gateway: Callable[..., Gateway]) -> None:
    chunks = [
        {"choices": [{"index": 0, "text": " wo", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "rld", "finish_reason": "length"}]},
        usage(2, 2),
    ]
    server, provider = gateway(say(*chunks), provider={"kind": "vllm"})
    client = server.openai()
    reply = client.completions.create(model="far", prompt="hello", max_tokens=2, echo=True)
    assert reply.choices[0].text == "hello world" and reply.choices[0].finish_reason == "length"
    assert provider.exchanges[0].path == "/v1/completions" and provider.exchanges[0].body["prompt"] == "hello"


def test_what_a_target_cannot_honor_is_refused_by_name(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(remote={"lax": {"provider": "work", "drop": ["min_p"]}})
    http = server.http()
    ask = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
    for more, param in (
        ({"min_p": 0.1}, "min_p"),
        ({"mirostat": 2}, "mirostat"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"n": 2, "vote": {"extract": "last_number"}}, "vote"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ):
        reply = http.post("/v1/chat/completions", json=ask | more)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
        assert "'far'" in reply.json()["error"]["message"]
    refused = http.post("/v1/completions", json={"model": "far", "prompt": "x"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt"
    assert not provider.exchanges
    dropped = http.post("/v1/chat/completions", json=ask | {"model": "lax", "min_p": 0.1}).json()
    assert dropped["choices"][0]["message"]["content"] == "Hello"
    assert dropped["warnings"][0]["param"] == "min_p"
    assert "min_p" not in provider.exchanges[0].body


@pytest.mark.parametrize("path", ["/tokenize", "/api/show"])
def test_what_needs_a_model_of_this_machine_says_so(gateway: Callable[..., Gateway], path: str) -> None:
    server, _ = gateway()
    body: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "x"}]}
    body = {"/api/show": {"model": "far"}}.get(path, body)
    reply = server.http().post(path, json=body)
    assert reply.status_code == 400 and "remote model" in reply.text, reply.text


def test_what_has_no_effect_on_a_provider_is_said(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(say(*HELLO, usage()))
    body = {"model": "far", "messages": ASK, "slo": {"ttft_ms": 9}, "service_tier": "priority"}
    reply = server.http().post("/v1/chat/completions", json=body).json()
    assert [warning["param"] for warning in reply["warnings"]] == ["priority", "slo"]
    assert reply["service_tier"] == "default"


def test_an_unknown_model_is_told_of_the_remote_ones(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway()
    reply = server.http().post("/v1/chat/completions", json={"model": "fra", "messages": ASK})
    assert reply.status_code == 404 and "'far'" in reply.json()["error"]["message"]


def test_models_are_listed(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(model={"aliases": ["gpt-x"]})
    cards = {card["id"]: card for card in server.http().get("/v1/models").json()["data"]}
    assert cards["far"]["state"] == "remote" and cards["far"]["owned_by"] == "work"
    reply = server.openai().chat.completions.create(
        model="gpt-x", messages=[{"role": "user", "content": "x"}]
    )
    assert reply.choices[0].message.content == "Hello"


def test_images_go_through(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway()
    url = "data:image/png;base64,aGk="
    parts = [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "text", "text": "this?"},
    ]
    client = server.openai()
    client.chat.completions.create(model="far", messages=[{"role": "user", "content": parts}])
    assert provider.exchanges[0].body["messages"][0]["content"] == parts
    local = server.http().post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}]}
    )
    assert local.status_code == 400 and "reads text only" in local.text


def test_images_of_the_other_surfaces_go_through(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway()
    png = "iVBORw0KGgoAAAA="
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
    source = {"type": "base64", "media_type": "image/png", "data": png}
    words = [{"type": "text", "text": "what is"}, {"type": "text", "text": "this?"}]
    turn = {"role": "user", "content": [words[0], {"type": "image", "source": source}, words[1]]}
    server.anthropic().messages.create(model="far", max_tokens=9, messages=[turn])
    seen = [
        {"type": "input_text", "text": "what is"},
        {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "low"},
        {"type": "input_text", "text": "this?"},
    ]
    server.openai().responses.create(model="far", input=[{"role": "user", "content": seen}])
    asked = {"role": "user", "content": "this?", "images": [png]}
    server.ollama().chat(model="far", messages=[asked])
    server.ollama().generate(model="far", prompt="this?", images=[png])
    sent = [exchange.body["messages"][0]["content"] for exchange in provider.exchanges]
    detailed = {**part, "image_url": {**part["image_url"], "detail": "low"}}
    assert sent == [
        [words[0], part, words[1]],
        [words[0], detailed, words[1]],
        [part, words[1]],
        [part, words[1]],
    ]
    http = server.http()
    for path, body in (
        ("/v1/messages", {"max_tokens": 9, "messages": [turn]}),
        ("/v1/responses", {"input": [{"role": "user", "content": seen}]}),
        ("/api/chat", {"model": server.model.name, "messages": [asked]}),
        ("/api/generate", {"model": server.model.name, "prompt": "x", "images": [png]}),
    ):
        refused = http.post(path, json=body)
        assert refused.status_code == 400 and "text only" in refused.text, refused.text


def test_guards_stand_before_remote_models(gateway: Callable[..., Gateway]) -> None:
    guard = {"kind": "regex", "patterns": ["blue.?bird"], "action": "redact"}
    said = (delta(content="a blue"), delta(content="bird."), delta(finish="stop"), usage())
    server, provider = gateway(say(*said), guards={"codename": guard})
    reply = server.openai().chat.completions.create(
        model="far", messages=[{"role": "user", "content": "what is bluebird?"}]
    )
    assert "bluebird" not in str(provider.exchanges[0].body["messages"])
    assert "blue" not in (reply.choices[0].message.content or "x")


def test_a_blocked_answer_of_a_remote_model_is_not_read_to_its_end(gateway: Callable[..., Gateway]) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin()
        for count in range(2000):
            await exchange.send(events(delta(content=f"a bluebird {count}. "), done=False))
            await asyncio.sleep(0.005)
        ended.set()

    ended = threading.Event()
    guard = {"kind": "regex", "patterns": ["bluebird"], "on": ["output"]}
    server, provider = gateway(endless, guards={"codename": guard})
    body = {"model": "far", "messages": [{"role": "user", "content": "sing"}]}
    for stream in (False, True):
        reply = server.http().post("/v1/chat/completions", json=body | {"stream": stream})
        assert reply.status_code == 200 and "content_filter" in reply.text, reply.text
        assert "bluebird" not in reply.text and not ended.is_set()
    end_s = time.monotonic() + 30
    while provider.gone < 2:
        assert time.monotonic() < end_s and not ended.is_set()
        time.sleep(0.01)


def test_tokens_of_remote_models_count_for_the_limits_of_a_key(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(say(*HELLO, usage(700, 200)), key_tpm=1000)
    http = server.http()
    ask = {"model": "far", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
    first = http.post("/v1/chat/completions", json=ask)
    assert first.status_code == 200 and int(first.headers["x-ratelimit-remaining-tokens"]) <= 1000
    again = http.post("/v1/chat/completions", json=ask | {"max_tokens": 500})
    assert again.status_code == 429 and len(provider.exchanges) == 1, again.text
