"""Answers that break off after the commit point: `on_break` "continue" goes on where that is exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_provider import (
    FakeProvider,
    Gateway,
    Reply,
    delta,
    events,
    fail,
    running_provider,
    say,
    send,
    usage,
)
from in_process import Running, shipped_model_server

from headrace.chat.tool_formats.events import Text
from headrace.economy.ledger import Ledger
from headrace.gateway import attempts as attempts_module
from headrace.gateway.continuation import GivenText
from headrace.inference.events import OutputDelta
from headrace.storage.database import Database

ASK: list[Any] = [{"role": "user", "content": "hi"}]
BROKEN = send(events(delta(role="assistant", content=""), delta(content="Hello wo"), done=False))
REST = say(delta(role="assistant", content=""), delta(content="rld"), delta(finish="stop"), usage(9, 2))
Start = Callable[..., Gateway]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "BACKOFF_S", 0.01)


@contextmanager
def broken_and_whole(
    gateway: Start,
    *second: Reply,
    kind: str = "vllm",
    on_break: str = "continue",
    first: Reply = BROKEN,
    **more: Any,
) -> Iterator[tuple[Running, FakeProvider, FakeProvider]]:
    """A route `best` over a provider whose answer breaks off, and one that may go on."""
    with running_provider(*(second or (REST,))) as other:
        providers = {"other": {"kind": kind, "base_url": other.url}}
        remote = {"best": {"targets": ["far", "other/m"], "on_break": on_break}}
        server, broken = gateway(first, remote=remote, providers=providers, **more)
        yield server, broken, other


def stream(server: Running, **more: Any) -> list[Any]:
    """The chunks of a stream; the last is what was there instead of an end."""
    body = {
        "model": "best",
        "messages": ASK,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    with server.http().stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    return [one if one == "[DONE]" else json.loads(one) for one in lines]


def text_of(chunks: list[Any]) -> str:
    choices = [one["choices"] for one in chunks if one != "[DONE]" and "choices" in one]
    return "".join(each[0]["delta"].get("content") or "" for each in choices if each)


def test_another_target_goes_on_from_the_text_that_was_given(gateway: Start, tmp_path: Path) -> None:
    store = tmp_path / "store"
    prices = {"work/far-1": {"input": 1, "output": 1}, "other/m": {"input": 2, "output": 2}}
    with broken_and_whole(gateway, prices=prices, store=str(store)) as (server, _, other):
        chunks = stream(server, max_tokens=20)
        assert text_of(chunks) == "Hello world" and chunks[-1] == "[DONE]"
        assert sum("role" in one["choices"][0]["delta"] for one in chunks[:-1] if one["choices"]) == 1
        ends = [one for one in chunks[:-1] if one["choices"] and one["choices"][0]["finish_reason"]]
        assert len(ends) == 1
        [exchange] = other.exchanges
        assert exchange.body["messages"] == [*ASK, {"role": "assistant", "content": "Hello wo"}]
        assert exchange.body["continue_final_message"] and not exchange.body["add_generation_prompt"]
        assert exchange.body["max_tokens"] == 20 - 3  # eight letters are three tokens at most
        [used] = [one["usage"] for one in chunks[:-1] if one.get("usage")]
        assert (used["prompt_tokens"], used["completion_tokens"]) == (9 - 3, 2 + 3)
    booked = sorted((entry.target, entry.outcome) for _, entry in Ledger(Database(store)).entries())
    assert booked == [("far", "truncated"), ("other/m", "ok")]


def test_a_reply_at_once_has_all_of_it_and_says_so(gateway: Start) -> None:
    with broken_and_whole(gateway) as (server, _, _):
        reply = server.http().post("/v1/chat/completions", json={"model": "best", "messages": ASK})
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"] == "Hello world"
        [warning] = [one for one in reply.json()["warnings"] if one["param"] == "on_break"]
        assert "'far'" in warning["message"] and "'other/m' went on" in warning["message"]
        assert reply.headers["x-headrace-target"] == "other/m" and reply.headers["x-headrace-attempts"] == "2"


def test_a_message_that_was_continued_already_is_continued(gateway: Start) -> None:
    with broken_and_whole(gateway, provider={"kind": "vllm"}) as (server, _, other):
        begun = [*ASK, {"role": "assistant", "content": "Well. "}]
        more = {"continue_final_message": True, "add_generation_prompt": False}
        assert text_of(stream(server, messages=begun, **more)) == "Hello world"
        assert other.exchanges[0].body["messages"][-1]["content"] == "Well. Hello wo"


def test_what_breaks_off_again_is_gone_on_from_again(gateway: Start) -> None:
    again = send(events(delta(content="rld, "), done=False))
    last = say(delta(content="again"), delta(finish="stop"), usage(9, 1))
    with broken_and_whole(gateway, again, last) as (server, broken, other):
        chunks = stream(server)
        assert text_of(chunks) == "Hello world, again" and chunks[-1] == "[DONE]"
        assert len(broken.exchanges) == 1 and len(other.exchanges) == 2
        assert other.exchanges[1].body["messages"][-1]["content"] == "Hello world, "
        [used] = [one["usage"] for one in chunks[:-1] if one.get("usage")]
        assert used["completion_tokens"] == 1 + 5  # 13 letters


def test_attempts_are_bounded(gateway: Start) -> None:
    with broken_and_whole(gateway, send(events(delta(content="x"), done=False))) as (server, broken, other):
        chunks = stream(server)
        assert text_of(chunks) == "Hello woxx" and "error" in chunks[-1]
        assert len(broken.exchanges) + len(other.exchanges) == 3


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("kind", "on_break", "first", "asked"),
    [
        ("vllm", "error", BROKEN, {}),
        ("compatible", "continue", BROKEN, {}),  # does not continue
        ("mistral", "continue", BROKEN, {}),  # may begin with the message
        ("anthropic", "continue", send(events(delta(content="Hello "), done=False)), {}),  # white space
        ("vllm", "continue", BROKEN, {"n": 2}),
        ("vllm", "continue", BROKEN, {"tools": [TOOL]}),
        ("vllm", "continue", send(events(delta(reasoning_content="Hm"), done=False)), {}),
        ("vllm", "continue", BROKEN, {"max_tokens": 3}),  # as many as were given
        ("vllm", "continue", send(events(delta(content="{"), done=False)), {"response_format": SCHEMA}),
    ],
)
def test_where_nothing_can_go_on_exactly_the_error_is_the_end(
    gateway: Start, monkeypatch: pytest.MonkeyPatch, kind: str, on_break: str, first: Reply, asked: Any
) -> None:
    for name in ("ANTHROPIC_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(name, "none-of-them")
    far = {"kind": kind if kind == "vllm" else "compatible"}
    with broken_and_whole(gateway, kind=kind, on_break=on_break, first=first, provider=far) as (
        server,
        broken,
        other,
    ):
        chunks = stream(server, **asked)
        assert "'far'" in chunks[-1]["error"]["message"] and not other.exchanges
        assert len(broken.exchanges) == 1


def test_a_target_that_refuses_leaves_the_first_error(gateway: Start) -> None:
    with broken_and_whole(gateway, fail(400, {"error": {"message": "no prefill"}})) as (server, _, other):
        chunks = stream(server)
        assert "'far'" in chunks[-1]["error"]["message"] and "no prefill" not in str(chunks)
        assert len(other.exchanges) == 1


def test_the_text_is_that_of_an_answer_that_did_not_break(gateway: Start) -> None:
    """A server of this project goes on from every place of its own greedy answer."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with shipped_model_server(template, max_num_seqs=2, max_batch_tokens=128) as target:
        ask = [{"role": "user", "content": "It was a cold evening."}]
        body = {"model": "novelette", "messages": ask, "temperature": 0, "max_tokens": 32}
        direct = (
            target.http().post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        )
        providers = {"whole": {"kind": "headrace", "base_url": target.url + "/v1"}}
        spaces = [place for place, letter in enumerate(direct) if letter == " " and place]
        broken = [send(events(delta(content=direct[:place]), done=False)) for place in spaces[:6]]
        remote = {"best": {"targets": ["far", "whole/novelette"], "on_break": "continue"}}
        server, _ = gateway(*broken, remote=remote, providers=providers)
        for _ in spaces[:6]:
            text = text_of(stream(server, messages=ask, temperature=0, max_tokens=80))
            assert text[: len(direct)] == direct


def test_tokens_that_were_told_are_counted() -> None:
    given = GivenText()
    given.take([OutputDelta(0, [Text("one two")], (5, 6))])
    assert (given.tokens, given.text) == (2, "one two")
