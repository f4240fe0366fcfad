"""`slo` and `guard` of a request on each API, and the service tier in replies."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from in_process import Running

from headrace.engine.request import Targets

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/responses": {"input": "a", "store": False},
    "/v1/messages": {"model": "fake/model", "messages": MESSAGES, "max_tokens": 2},
    "/api/chat": {"model": "fake/model", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "fake/model", "prompt": "a", "stream": False},
    "/v1beta/models/fake/model:generateContent": {"contents": [{"parts": [{"text": "a"}]}]},
}
OPENAI = list(BODIES)[:3]


@pytest.mark.parametrize("path", BODIES)
def test_targets_go_to_the_engine(server: Running, path: str) -> None:
    http = server.http()
    slo = {"ttft_ms": 200, "tpot_ms": 50}
    reply = http.post(path, json=BODIES[path] | {"slo": slo})
    assert reply.status_code == 200, reply.text
    # A key without the right to be urgent cannot make steps shorter.
    assert server.model.engine.submitted[-1].slo in (Targets(0.2, 0.05), Targets(0.2, 0.05, urgent=False))
    for wrong in ({"ttft_ms": 0}, {"ttft": 5}, {"tpot_ms": "fast"}, 5):
        reply = http.post(path, json=BODIES[path] | {"slo": wrong})
        assert reply.status_code == 400 and "slo" in reply.text


@pytest.mark.parametrize("path", BODIES)
def test_a_quality_of_one_model_is_no_promise(server: Running, path: str) -> None:
    reply = server.http().post(path, json=BODIES[path] | {"route": {"quality": 0.9}})
    assert reply.status_code == 200 and "quality has no effect" in reply.headers["x-headrace-warnings"]
    assert "x-headrace-warnings" not in server.http().post(path, json=BODIES[path]).headers


def test_money_of_one_model_is_time(server: Running, serve: Callable[..., Running]) -> None:
    path = "/v1/chat/completions"
    reply = server.http().post(path, json=BODIES[path] | {"route": {"max_usd": 0.01}})
    assert reply.status_code == 200
    [said] = json.loads(reply.headers["x-headrace-warnings"])
    assert said["param"] == "route" and "max_usd has no effect" in said["message"]
    priced = serve(node_usd_per_hour=0.5)
    reply = priced.http().post(path, json=BODIES[path] | {"route": {"max_usd": 0.01}})
    assert reply.status_code == 200 and "x-headrace-warnings" not in reply.headers
    assert priced.model.engine.submitted[-1].deadline_s == pytest.approx(72.0)
    reply = priced.http().post(path, json=BODIES[path] | {"route": {"max_usd": 0}})
    assert reply.status_code == 400 and "max_usd is 0" in reply.text


@pytest.mark.parametrize("path", BODIES)
def test_guards_are_named_on_every_api(serve: Callable[..., Running], path: str) -> None:
    table = {"kind": "regex", "patterns": ["[a-z]"], "on": ["output"], "always": False}
    server = serve(guards={"all": table})
    http = server.http()
    assert "blocked the output" not in http.post(path, json=BODIES[path]).text
    reply = http.post(path, json=BODIES[path] | {"guard": "all"})
    assert reply.status_code == 200, reply.text
    assert any(word in reply.text for word in ("content_filter", "refusal", "SAFETY"))
    assert http.post(path, json=BODIES[path] | {"guard": "none"}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_says_why_an_answer_ended(serve: Callable[..., Running], stream: bool) -> None:
    server = serve(guards={"all": {"kind": "regex", "patterns": ["[a-z]"], "on": ["output"]}})
    reply = server.http().post("/api/chat", json=BODIES["/api/chat"] | {"stream": stream})
    last = json.loads(reply.text.strip().split("\n")[-1])
    assert last["done"] and last["done_reason"] == "content_filter"
    assert last["message"]["content"] == ""
    assert last["guards"] == [
        {"guard": "all", "stage": "output", "action": "block", "label": "ALL", "score": 1.0}
    ]
    blocked = serve(guards={"all": {"kind": "regex", "patterns": ["[a-z]"]}})
    reply = blocked.http().post("/api/chat", json=BODIES["/api/chat"])
    assert reply.status_code == 400 and "'all' blocks what was sent" in reply.json()["error"]


@pytest.mark.parametrize("path", OPENAI)
def test_replies_name_the_tier(server: Running, path: str) -> None:
    http = server.http()
    for asked, got in (
        ("auto", "default"),
        ("default", "default"),
        ("flex", "flex"),
        ("priority", "priority"),
    ):
        reply = http.post(path, json=BODIES[path] | {"service_tier": asked}).json()
        assert reply["service_tier"] == got
    assert http.post(path, json=BODIES[path]).json().get("service_tier") in (None, "default")


def test_chunks_name_the_tier(server: Running) -> None:
    client = server.openai()
    for tier in ("flex", "priority"):
        chunks = client.chat.completions.create(
            model="fake/model",
            messages=MESSAGES,
            max_tokens=2,
            stream=True,
            service_tier=tier,  # type: ignore
        )
        assert {chunk.service_tier for chunk in chunks} == {tier}
