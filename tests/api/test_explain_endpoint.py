"""POST /v1/explain: prompts are made and looked up, and nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from in_process import Running, running_server

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "list the files of a folder by size " * 4}],
    "max_tokens": 12,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model = load_model("mini", EngineOptions(max_num_seqs=4))
    with running_server(model, node_usd_per_hour=3.6) as running:
        yield running
    model.close()


def explained(server: Running, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.http().post("/v1/explain", json={"endpoint": endpoint, "body": body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def part(node: dict[str, Any], name: str) -> dict[str, Any]:
    if node["name"] == name:
        return node
    for child in node.get("children", []):
        if found := part(child, name):
            return found
    return {}


def test_nothing_is_computed_and_the_prefix_is_found(server: Running) -> None:
    before = server.model.engine.status().steps
    cold = explained(server, CHAT, BODY)
    assert server.model.engine.status().steps == before
    assert cold["detail"] == {"computed": False} and part(cold, "tokenize") and part(cold, "template")
    assert part(cold, "prefill 1")["detail"]["cached_tokens"] == 0
    reply = server.http().post(CHAT, json=BODY).json()
    warm = explained(server, CHAT, BODY)
    usage, engine = reply["usage"], part(warm, "engine")["detail"]
    assert engine["prompt_tokens"] == usage["prompt_tokens"]
    assert engine["cached_tokens"] == part(warm, "prefill 1")["detail"]["cached_tokens"] > 0
    again = server.http().post(CHAT, json=BODY).json()["usage"]["prompt_tokens_details"]
    assert engine["cached_tokens"] == again["cached_tokens"]
    assert engine["output_tokens"] == 12 and part(warm, "decode")["detail"]["steps"] == 11
    assert engine["kv_pages"] > 0 and engine["kv_bytes"] > 0
    assert part(warm, "prefill 1")["predicted_s"] > 0 and part(warm, "decode")["predicted_s"] > 0
    [logged] = (
        server.http().get("/v1/requests", params={"endpoint": "/v1/explain", "limit": 1}).json()["data"]
    )
    assert logged["output_tokens"] is None  # they are only predicted
    assert abs(engine["usd"] - 0.001 * warm["predicted_s"]) < 1e-9
    assert part(warm, "decode")["measured_s"] == 0


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "ls -l", "max_tokens": 5}),
        ("/v1/messages", {"model": "mini", "messages": BODY["messages"], "max_tokens": 5}),
        ("/v1/responses", {"input": "list files", "max_output_tokens": 5}),
    ],
)
def test_other_endpoints(server: Running, endpoint: str, body: dict[str, Any]) -> None:
    running, replies = server.model.engine.status().steps, server.http().get("/metrics").text
    found = explained(server, endpoint, body)
    assert part(found, "engine")["detail"]["output_tokens"] == 5
    assert server.model.engine.status().steps == running and "headrace" in replies


def test_several_prompts_and_choices(server: Running) -> None:
    found = explained(server, "/v1/completions", {"prompt": ["a b c", "d e f"], "n": 3, "max_tokens": 7})
    engine = part(found, "engine")
    assert [one["name"] for one in engine["children"]] == ["prompt 0", "prompt 1"]
    assert engine["detail"]["output_tokens"] == 2 * 3 * 7
    assert part(engine, "decode")["detail"]["batch"] == 3.0
    many = explained(server, "/v1/completions", {"prompt": ["a b c"] * 20, "max_tokens": 7})
    assert part(many, "engine")["detail"]["output_tokens"] == 20 * 7


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"endpoint": "/v1/nothing", "body": {}}, 400, "endpoint"),
        ({"endpoint": CHAT}, 400, "body"),
        ({"endpoint": CHAT, "body": {"messages": 3}}, 400, "messages"),
        ({"endpoint": CHAT, "body": BODY | {"model": "nobody"}}, 404, "model"),
        ({"endpoint": CHAT, "body": BODY | {"max_tokens": 10**6}}, 400, "max_tokens"),
        ({"endpoint": "/v1/redact", "body": {"input": "text"}}, 400, "body"),
    ],
)
def test_bad_input(server: Running, body: dict[str, Any], status: int, param: str) -> None:
    reply = server.http().post("/v1/explain", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text


def test_embeddings(server: Running) -> None:
    model = load_model("embed", EngineOptions())
    with running_server(model) as encoder:
        found = explained(encoder, "/v1/embeddings", {"input": ["a text", "another"]})
        assert encoder.model.engine.status().steps == 0
        engine = part(found, "engine")
        assert [one["name"] for one in engine["children"]] == ["prompt 0", "prompt 1"]
        assert part(engine, "encode")["detail"]["tokens"] > 0 and "kv_pages" not in engine["detail"]
    model.close()
