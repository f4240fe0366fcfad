"""Personal data and routes: nothing of it reaches a provider, and what was replaced comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from fake import FakeModel
from fake_provider import Exchange, Gateway, delta, events, running_provider, usage

from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Arguments, CallEnd, CallStart, Reasoning, Text
from headrace.gateway.privacy import FAILED, UNREAD, PrivacyCheck, Private, Restorer
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import OutputDelta, OutputFinished
from headrace.inference.requests import ChatRequest
from headrace.storage.keys import KeyLimits

CANARIES = (
    "zoe.canary{n}@example.org",
    "4111 1111 1111 1111",
    "DE89 3704 0044 0532 0130 00",
    "+49 30 901820",
    "ghp_aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY{n2}",
    "203.0.113.77",
    "5500-0055-5555-5559",
    "536-90-4399",
)
REQUESTS = int(os.environ.get("TEST_PRIVATE_REQUESTS", "120"))  # of each way; 500 by `make nightly`
MARKS = ("canary", "4111", "3704", "901820", "aB3dE5fG7", "203.0.113", "5559", "90-4399")
PLACES = (
    *("user", "system", "assistant", "tool_result", "arguments", "reasoning", "tool_description"),
    *("schema_description", "schema_enum", "schema_key", "image", "alt_text", "base64", "stop", "format"),
    *("prediction", "cache_key", "name", "escaped", "zero_width", "split"),
)


def body_with(place: str, secret: str) -> dict[str, Any]:
    """A request with a secret somewhere."""
    text = f"Please note: my SSN, card or contact is {secret}."
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
    ]
    function: dict[str, Any] = {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    }
    schema = function["parameters"]
    more: dict[str, Any] = {}
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    match place:
        case "user" | "system":
            messages[place == "user"]["content"] = text
        case "assistant":
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
        case "arguments" | "escaped":
            written = json.dumps({"what": text})
            if place == "escaped":
                written = "".join(f"\\u{ord(one):04x}" if one in "@.10" else one for one in written)
            calls[0]["function"]["arguments"] = written  # type: ignore[index]
            messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
            messages += [{"role": "tool", "tool_call_id": "c1", "content": "done"}]
        case "tool_result":
            messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
            messages += [{"role": "tool", "tool_call_id": "c1", "content": text}]
        case "reasoning":
            messages += [
                {"role": "assistant", "content": "ok", "reasoning_content": text},
                {"role": "user", "content": "And?"},
            ]
        case "tool_description":
            function["description"] = text
        case "schema_description":
            schema["properties"]["what"]["description"] = text
        case "schema_enum":
            schema["properties"]["what"]["enum"] = [text]
        case "schema_key":
            schema["properties"][text] = {"type": "string"}
        case "image":
            url = "data:image/png;base64," + base64.b64encode(text.encode()).decode()
            messages[1]["content"] = [{"type": "image_url", "image_url": {"url": url}}]
        case "alt_text":
            messages[1]["content"] = [{"type": "text", "text": f"![{text}](http://x/y.png)"}]
        case "base64":
            messages[1]["content"] = "decode " + base64.b64encode(text.encode()).decode()
        case "stop":
            more["stop"] = [text]
        case "format":
            more["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "description": text}},
            }
        case "prediction":
            more["prediction"] = {"type": "content", "content": text}
        case "cache_key":
            more["prompt_cache_key"] = text
        case "name":
            messages[1]["name"] = text
        case "zero_width":
            messages[1]["content"] = "My SSN, card or contact is " + "\u200b".join(secret)
        case _:
            messages[0]["content"] = "What follows is an SSN, a card or a contact:"
            messages[1]["content"] = [{"type": "text", "text": one} for one in ("See", secret, "there")]
    return {"messages": messages, "tools": [{"type": "function", "function": function}], **more}


async def echo(exchange: Exchange) -> None:
    """A provider that says what it was told, in pieces."""
    await exchange.begin()
    content = exchange.body["messages"][-1]["content"] or ""
    text = content if isinstance(content, str) else "".join(one.get("text", "") for one in content)
    pieces = [delta(content=text[place : place + 3]) for place in range(0, len(text), 3)]
    await exchange.send(events(*pieces, delta(finish="stop"), usage()))


@pytest.mark.parametrize("privacy", ["local", "redact"])
def test_canaries_never_reach_a_provider(gateway: Callable[..., Gateway], privacy: str) -> None:
    """Requests over both ways, with personal data in all places of a request."""
    local = FakeModel().name
    server, provider = gateway(
        echo, remote={"auto": {"targets": ["far", local], "privacy": privacy, "drop": ["prediction"]}}
    )
    draw, client = random.Random(privacy), server.http()
    asked: list[str] = []
    for number in range(REQUESTS):
        place = PLACES[number % len(PLACES)]
        secret = CANARIES[draw.randrange(len(CANARIES))].format(n=number, n2=number % 10)
        body = body_with(place, secret)
        reply = client.post("/v1/chat/completions", json={"model": "auto", "max_tokens": 4, **body})
        asked.append(f"{place} {secret!r} {reply.status_code}: {reply.text[:200]}")
        for exchange in provider.exchanges:
            headers = {name: text for name, text in exchange.headers.items() if name != "traceparent"}
            sent = exchange.raw.decode() + json.dumps(headers)  # random digits of a trace may be any
            assert not any(mark in sent for mark in MARKS), asked[-1]
        if privacy == "redact":
            if provider.exchanges and place in ("user", "alt_text"):
                assert secret in reply.json()["choices"][0]["message"]["content"]
        else:
            assert not provider.exchanges, asked[-1]
        provider.exchanges.clear()


def test_what_is_not_personal_leaves(gateway: Callable[..., Gateway]) -> None:
    local = FakeModel().name
    server, provider = gateway(echo, remote={"auto": {"targets": ["far", local], "route": "privacy"}})
    ask: list[Any] = [{"role": "user", "content": "What is a quicksort?"}]
    reply = server.http().post("/v1/chat/completions", json={"model": "auto", "messages": ask, "seed": 12345})
    assert reply.headers["x-headrace-target"] == "far" and len(provider.exchanges) == 1, reply.text


def test_without_a_local_target_personal_data_is_refused(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(echo, remote={"auto": {"targets": ["far", "work/x"], "route": "privacy"}})
    ask: list[Any] = [{"role": "user", "content": "I am zoe@example.org"}]
    reply = server.http().post("/v1/chat/completions", json={"model": "auto", "messages": ask})
    assert reply.status_code == 400 and "EMAIL_ADDRESS" in reply.text and not provider.exchanges


def test_neither_counting_tokens_nor_embedding_sends_personal_data(gateway: Callable[..., Gateway]) -> None:
    """Both reach a provider by another way than answers."""
    remote = {"auto": {"targets": ["claude/x"], "privacy": "redact"}}
    with running_provider(echo) as other:
        providers = {"claude": {"dialect": "anthropic", "base_url": other.url, "api_key_env": "PATH"}}
        server, provider = gateway(echo, providers=providers, remote=remote)
        ask: list[Any] = [{"role": "user", "content": "I am zoe@example.org"}]
        client = server.http()
        counted = client.post("/v1/messages/count_tokens", json={"model": "auto", "messages": ask})
        embedded = client.post("/v1/embeddings", json={"model": "auto", "input": "zoe@example.org"})
        assert counted.status_code == 400 and "personal data" in counted.text, counted.text
        assert embedded.status_code == 400, embedded.text
        assert not other.exchanges and not provider.exchanges


def test_a_search_that_fails_counts_as_personal(
    gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = FakeModel().name
    entries = {"auto": {"targets": ["far", local], "privacy": "redact"}}
    server, provider = gateway(echo, remote=entries)

    def broken(texts: list[str]) -> set[str]:
        raise RuntimeError("no")

    monkeypatch.setattr("headrace.gateway.privacy._labels", broken)
    ask: list[Any] = [{"role": "user", "content": "hello"}]
    reply = server.http().post("/v1/chat/completions", json={"model": "auto", "messages": ask})
    assert reply.headers["x-headrace-target"] == local and not provider.exchanges
    assert "search for personal data failed" in reply.text


def test_a_detector_that_is_missing_counts_as_personal(gateway: Callable[..., Gateway]) -> None:
    local = FakeModel().name
    entries = {"auto": {"targets": ["far", local], "privacy": "redact", "detector": "nothing"}}
    server, provider = gateway(echo, remote=entries)
    ask: list[Any] = [{"role": "user", "content": "hello"}]
    reply = server.http().post("/v1/chat/completions", json={"model": "auto", "messages": ask})
    assert reply.headers["x-headrace-target"] == local and not provider.exchanges


def test_a_stream_gets_its_data_back(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(echo, remote={"auto": {"targets": ["far"], "privacy": "redact"}})
    text = 'Write to zoe.q@example.org, or to "bob@example.org".'
    chunks = server.openai().chat.completions.create(
        model="auto", messages=[{"role": "user", "content": text}], stream=True
    )
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == text
    assert "example.org" not in provider.exchanges[0].raw.decode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_placeholders_may_be_cut_anywhere(size: int) -> None:
    vault = {"<EMAIL_ADDRESS_1>": 'z"\n\\@x.org', "<PHONE_NUMBER_1>": "+49 30"}
    restorer = Restorer(Private((), None, vault), is_json=False)
    written = json.dumps({"to": "<EMAIL_ADDRESS_1>", "n": ["<PHONE_NUMBER_1>", "<OTHER_1>"]})
    text = "a <EMAIL_ADDRESS_1> < <PHONE_NUMBER_1"
    parts: list[Any] = [Reasoning(text[place : place + size]) for place in range(0, len(text), size)]
    parts += [Text(text[place : place + size]) for place in range(0, len(text), size)]
    parts += [CallStart(0, "c", "mail")]
    parts += [Arguments(0, written[place : place + size]) for place in range(0, len(written), size)]
    parts += [CallEnd(0), Text("<EMAIL_ADDRESS_1")]
    found = restorer.batch(
        [OutputDelta(0, [part]) for part in parts] + [OutputFinished(0, [], "stop", "stop")]
    )
    shown = [part for event in found for part in event.parts]  # type: ignore[union-attr]
    expected = 'a z"\n\\@x.org < <PHONE_NUMBER_1'
    assert "".join(one.text for one in shown if isinstance(one, Reasoning)) == expected
    assert "".join(one.text for one in shown if isinstance(one, Text)) == expected + "<EMAIL_ADDRESS_1"
    arguments = json.loads("".join(one.text for one in shown if isinstance(one, Arguments)))
    assert arguments == {"to": 'z"\n\\@x.org', "n": ["+49 30", "<OTHER_1>"]}
    kinds = [type(one) for one in shown]
    assert kinds.index(CallEnd) > max(place for place, one in enumerate(kinds) if one is Arguments)


def checked(request: ChatRequest, detector: str | None, call: CallContext, *, redacts: bool) -> Private:
    return asyncio.run(PrivacyCheck(None).check(request, detector, call, redacts=redacts))


def test_what_cannot_be_read_is_personal() -> None:
    call = CallContext(request_id="r", account=Account("", KeyLimits()))
    request = ChatRequest(id="r", messages=(Message("user", "hi"),), context=(1, 2))
    found = checked(request, None, call, redacts=True)
    assert found.labels == (UNREAD,) and found.redacted is None
    plain = ChatRequest(id="r", messages=(Message("user", "hi"),))
    broken = checked(plain, "tagger", call, redacts=True)
    assert broken.labels == (FAILED,) and broken.redacted is None
    clean = checked(plain, None, call, redacts=False)
    assert clean.labels == () and clean.redacted == plain
