"""Hostile and broken providers: bounded memory and time, typed errors with the target, no key in sight."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import resource
from collections.abc import Callable
from typing import Any

import pytest
from fake_provider import HELLO, Exchange, Gateway, delta, events, fail, say, send, usage

from headrace.config.addresses import is_local_name, is_private
from headrace.providers import answer, remote_attempt
from headrace.providers.address import PinnedResolver, PrivateAddress
from headrace.providers.failure import MAX_MESSAGE, shown
from headrace.providers.sse import SseError, SseEvent, SseSplitter
from headrace.providers.usage import nano_usd, openai_usage

ASK: list[Any] = [{"role": "user", "content": "hi"}]
CANARY = "sk-canary-4f1d9b7c2e"


def post(server: Any, **more: Any) -> Any:
    return server.http().post("/v1/chat/completions", json={"model": "far", "messages": ASK, **more})


def refused(server: Any, cause: str, **more: Any) -> None:
    """A bad gateway, in the caller's shape, with the target's name and the cause."""
    reply = post(server, **more)
    message = reply.json()["error"]["message"]
    assert reply.status_code == 502 and "'far'" in message and cause in message, reply.text
    assert len(message) < MAX_MESSAGE + 200


ONE: dict[str, Any] = {"max_attempts": 1}


def test_an_event_of_64_mib(gateway: Callable[..., Gateway]) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b'data: {"choices":[{"index":0,"delta":{"content":"')
        for _ in range(1024):
            await exchange.send(b"a" * 65536)

    server, _ = gateway(endless, model=ONE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(server, "more than 4,194,304 bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_a_gzip_bomb_is_not_unpacked(gateway: Callable[..., Gateway]) -> None:
    bomb = gzip.compress(b"data: " + bytes(100 * 2**20))
    server, _ = gateway(send(bomb, content_encoding="gzip"), model=ONE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(server, "compressed")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (send(b"<html>Welcome</html>", content_type="text/html"), "'text/html'"),
        (send(b'{"choices": []}', content_type="application/json"), "'application/json'"),
        (send(b"", 302, location="http://169.254.169.254/"), "redirects"),
        (send(b"data: x\n\n", x_filler="y" * 9000), "headers"),
        (send(b""), "in the middle"),
        (send(b"data: [DONE]\n\n"), "in the middle"),
        (send(b'data: {"choices": 5}\n\n'), "no valid JSON of its API"),
        (say(delta(content="x"), delta(finish="stop"), delta(content="more")), "after its finish reason"),
        (say(delta(content="x", index=3)), "choice 3"),
        (
            say(delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "rm", "arguments": ""}}])),
            "was not offered",
        ),
    ],
)
def test_broken_replies(gateway: Callable[..., Gateway], reply: Any, cause: str) -> None:
    server, provider = gateway(reply, model=ONE)
    streamed = post(server, stream=True)
    said = streamed.json() if streamed.status_code != 200 else json.loads(streamed.text.split("data: ")[-1])
    assert "'far'" in said["error"]["message"] and cause in said["error"]["message"], streamed.text
    assert len(provider.exchanges) == 1


def test_characters_may_be_split_anywhere(gateway: Callable[..., Gateway]) -> None:
    data = events(delta(content="é🙂漢"), delta(finish="stop"), usage())
    data = data.replace(json.dumps("é🙂漢").encode(), '"é🙂漢"'.encode())
    assert "é".encode() in data

    async def bytewise(exchange: Exchange) -> None:
        await exchange.begin()
        for byte in data:
            await exchange.send(bytes([byte]))
            await asyncio.sleep(0)

    server, _ = gateway(bytewise)
    assert post(server).json()["choices"][0]["message"]["content"] == "é🙂漢"


def test_arguments_that_do_not_close(gateway: Callable[..., Gateway]) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "note", "arguments": '{"x": "'}}
    tool = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
    server, _ = gateway(
        say(delta(tool_calls=[call]), delta(finish="tool_calls")),
        say(delta(tool_calls=[call]), delta(finish="length"), usage()),
        model=ONE,
    )
    refused(server, "arguments that are no JSON object", tools=[tool])
    cut = post(server, tools=[tool]).json()["choices"][0]
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize(
    "counts",
    [
        usage(-5, 3),
        usage(2**80, 3),
        usage(5, 3, prompt_tokens_details={"cached_tokens": 50}),
        {"choices": [], "usage": {"prompt_tokens": "many"}},
        {"choices": [], "usage": []},
        {"choices": []},
    ],
)
def test_counts_that_cannot_be_right_are_estimates(gateway: Callable[..., Gateway], counts: Any) -> None:
    server, _ = gateway(say(*HELLO, counts))
    reply = post(server).json()
    assert reply["choices"][0]["message"]["content"] == "Hello"
    assert reply["usage"]["completion_tokens"] == 2 and "estimates" in reply["warnings"][0]["message"]


def test_usage_in_disjoint_classes() -> None:
    raw = json.dumps(
        {
            "prompt_tokens": 100,
            "completion_tokens": 50,
            "total_tokens": 150,
            "prompt_tokens_details": {"cached_tokens": 30, "audio_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 20},
            "cost": 0.0012345678915,
        }
    ).encode()
    found = openai_usage(raw)
    assert found.tokens and found.raw == raw and found.nano_usd == 1_234_568
    assert (found.tokens.input, found.tokens.cache_read, found.tokens.input_audio) == (65, 30, 5)
    assert (found.tokens.output, found.tokens.reasoning) == (30, 20)
    xai = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35}
    found = openai_usage(json.dumps(xai | {"completion_tokens_details": {"reasoning_tokens": 20}}).encode())
    assert found.tokens and (found.tokens.output, found.tokens.reasoning) == (5, 20)
    assert [nano_usd(value) for value in (-1, "x", True, None, float("nan"), 1e30, "0.5")] == [None] * 6 + [
        500_000_000
    ]


def test_tiny_pieces_of_what_is_held_have_an_end(
    gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece takes a hundred times the memory of its character."""
    for module in (answer, remote_attempt):
        monkeypatch.setattr(module, "MAX_PIECES", 1000)
    call = {"index": 0, "id": "call_a", "function": {"name": "note", "arguments": ""}}
    more = delta(tool_calls=[{"index": 0, "function": {"arguments": " "}}])
    server, _ = gateway(
        say(*[delta(content=" ")] * 1100, delta(finish="stop"), usage()),
        say(delta(tool_calls=[call]), *[more] * 1100, delta(finish="tool_calls"), usage()),
        model=ONE,
    )
    refused(server, "its answer in more than 1,000 pieces", response_format={"type": "json_object"})
    tool = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
    reply = server.http().post(
        "/v1/chat/completions",
        json={"model": "far", "messages": ASK, "tools": [tool], "stream": True},
    )
    assert "arguments of a call in more than 1,000 pieces" in reply.text


def test_structured_output_is_checked_where_the_provider_does_not_guarantee_it(
    gateway: Callable[..., Gateway],
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    bad = say(delta(content='{"a": "one"}'), delta(finish="stop"), usage())
    prose = say(delta(content="Sure! {"), delta(finish="stop"), usage())
    good = say(delta(content='{"b": 1'), delta(content="}"), delta(finish="length"), usage())
    right = say(delta(content='{"a":'), delta(content=" 1}"), delta(finish="stop"), usage())
    server, provider = gateway(bad, prose, right, bad, bad, bad, good)
    assert post(server, response_format=form).json()["choices"][0]["message"]["content"] == '{"a": 1}'
    assert len(provider.exchanges) == 3
    refused(server, "does not match the schema", response_format=form)
    sent = provider.exchanges[0].body["response_format"]["json_schema"]
    assert sent["schema"] == schema | {"additionalProperties": False} and sent["strict"] is True
    cut = post(server, response_format=form)  # what max_tokens cuts is no wrong answer
    assert cut.json()["choices"][0]["finish_reason"] == "length"


def test_a_schema_cannot_make_this_server_fetch(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "http://127.0.0.1:1/x"}}}
    reply = post(server, response_format=form)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "response_format"
    assert not provider.exchanges


def test_a_stalled_stream_ends(gateway: Callable[..., Gateway]) -> None:
    async def stalls(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(events(delta(content="Hel"), done=False))
        await asyncio.sleep(20)

    server, _ = gateway(stalls, provider={"idle_timeout": 0.2}, model=ONE)
    reply = post(server, stream=True)
    assert "stopped in the middle of its reply" in reply.text and "[DONE]" not in reply.text


@pytest.mark.parametrize(
    "reply",
    [
        fail(401, {"error": {"message": f"Incorrect API key provided: {CANARY}"}}),
        fail(500, {"error": {"message": f"Bearer {CANARY}"}}),
        send(f"<html>{CANARY}</html>".encode(), content_type=f"text/{CANARY}"),
        say({"error": {"message": f"key {CANARY} is used up", "type": "rate_limit_error"}}),
        say(delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": CANARY, "arguments": ""}}])),
        send(f'data: {{"x": {CANARY}\n\n'.encode()),
        fail(400, {"error": {"message": "no", "param": CANARY, "code": CANARY, "type": CANARY}}),
        say(delta(content="a"), {"error": {"message": "no", "param": CANARY, "code": 400}}),
        say(delta(content="a"), delta(finish=CANARY), usage(service_tier=CANARY)),
        say(
            delta(content="a"),
            {**delta(finish="stop"), "service_tier": CANARY, "system_fingerprint": CANARY},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "note": CANARY}},
        ),
    ],
)
def test_the_key_is_nowhere(
    gateway: Callable[..., Gateway],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Any,
    reply: Any,
) -> None:
    """Not in replies, headers, logs, the request log, errors of any surface."""
    monkeypatch.setenv("WORK_KEY", CANARY)
    caplog.set_level(logging.DEBUG)
    server, provider = gateway(
        reply,
        provider={"api_key_env": "WORK_KEY"},
        model=ONE,
        store=tmp_path / "s.sqlite3",
        log_requests=True,
    )
    http = server.http()
    for path, body in (
        ("/v1/chat/completions", {"messages": ASK}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 5}),
        ("/v1/responses", {"input": "hi"}),
        ("/api/chat", {"messages": ASK}),
    ):
        for stream in (False, True):
            said = http.post(path, json={"model": "far", "stream": stream, **body})
            assert CANARY not in said.text and CANARY not in str(said.headers), said.text
    for path in ("/v1/models", "/metrics", "/api/tags", "/health"):
        assert CANARY not in http.get(path).text
    assert any(CANARY in exchange.headers["authorization"] for exchange in provider.exchanges)
    assert CANARY not in caplog.text and CANARY not in "".join(capfd.readouterr())
    for file in tmp_path.iterdir():
        assert CANARY.encode() not in file.read_bytes()


def test_texts_of_providers_are_made_harmless() -> None:
    assert shown("a\x00b\x1b[31m\nc" + CANARY, CANARY) == "a b [31m c***"
    assert shown("none of them", "none") == "none of them"
    assert len(shown("x" * 10**6)) == MAX_MESSAGE


def split(data: bytes, dice: random.Random) -> list[SseEvent]:
    splitter, found, at = SseSplitter(), list[SseEvent](), 0
    while at < len(data):
        size = dice.choice((1, 2, 3, 50))
        found += splitter.feed(data[at : at + size])
        at += size
    return found + splitter.finish()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_do_not_depend_on_how_bytes_arrive(end: str) -> None:
    text = ":c\ndata: a\n\nevent: e\ndata:b\ndata: c\nid: 5\n\n\n\ndata\n\ndata: é\n\ndata: last"
    wanted = [
        SseEvent("", b"a"),
        SseEvent("e", b"b\nc"),
        SseEvent("", b""),
        SseEvent("", "é".encode()),
        SseEvent("", b"last"),
    ]
    for seed in range(200):
        assert split(("\ufeff" + text).replace("\n", end).encode(), random.Random(seed)) == wanted


def test_events_and_lines_are_bounded() -> None:
    splitter = SseSplitter(max_line_bytes=100, max_event_bytes=1000)
    with pytest.raises(SseError, match="line"):
        splitter.feed(b"data: " + b"x" * 200 + b"\n\n")
    splitter = SseSplitter(max_line_bytes=100, max_event_bytes=1000)
    with pytest.raises(SseError, match="event"):
        for _ in range(2000):
            splitter.feed(b":\n")
    time_limited = SseSplitter()
    for _ in range(200_000):  # one byte at a time takes linear time
        time_limited.feed(b"x")


def test_private_addresses() -> None:
    private = (
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "::1",
        "fe80::1%eth0",
        "fc00::1",
        "0.0.0.0",
    )
    translated = ("64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::", "::10.0.0.1", "::ffff:0:10.0.0.1")
    for address in (*private, *translated, "::ffff:10.0.0.1", "224.0.0.1", "100.64.0.1", "fec0::1"):
        assert is_private(address), address
    for address in ("1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"):
        assert not is_private(address), address
    assert is_local_name("gpu1") and is_local_name("127.0.0.1") and is_local_name("x.internal")
    assert not is_local_name("api.example.com") and not is_local_name("localhost.evil.com")


def test_a_public_name_may_not_lead_to_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["93.184.216.34", "10.0.0.1"]

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def resolved(host: str, port: int, **more: Any) -> Any:
            return [(2, 1, 6, "", (answers[0], port))]

        monkeypatch.setattr(loop, "getaddrinfo", resolved)
        resolver = PinnedResolver(allow_private=False)
        assert (await resolver.resolve("api.example.com", 443))[0]["host"] == answers[0]
        answers.pop(0)
        assert (await resolver.resolve("api.example.com", 443))[0]["host"] == "93.184.216.34"  # pinned
        with pytest.raises(PrivateAddress):
            await PinnedResolver(allow_private=False).resolve("api.example.com", 443)
        assert await PinnedResolver(allow_private=True).resolve("api.example.com", 443)

    asyncio.run(run())
