"""EXPLAIN in the replies of all surfaces, over the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from in_process import Running, running_server

from headrace.api.http.explaining import with_field
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

ASK = [{"role": "user", "content": "list the files of a folder by size"}]
HEADER = {"X-Headrace-Explain": "1"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model = load_model("mini", EngineOptions(max_num_seqs=4))
    with running_server(model) as running:
        yield running
    model.close()


def summed(node: dict[str, Any]) -> None:
    children = node.get("children", [])
    if children and not children[0].get("detail", {}).get("concurrent"):
        total = sum(one["measured_s"] for one in children)
        assert abs(total - node["measured_s"]) < max(0.02 * node["measured_s"], 3e-4), node
    for child in children:
        summed(child)


def names(node: dict[str, Any]) -> set[str]:
    return {node["name"]}.union(*(names(one) for one in node.get("children", [])))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 12}),
    ("/v1/completions", {"prompt": "ls -l", "max_tokens": 12}),
    ("/v1/responses", {"input": "list files", "max_output_tokens": 12}),
    ("/v1/messages", {"model": "mini", "messages": ASK, "max_tokens": 12}),
    ("/api/chat", {"model": "mini", "messages": ASK, "options": {"num_predict": 12}}),
    ("/api/generate", {"model": "mini", "prompt": "list files", "options": {"num_predict": 12}}),
]


@pytest.mark.parametrize(("path", "body"), CASES)
@pytest.mark.parametrize("stream", [False, True])
def test_every_surface(server: Running, path: str, body: dict[str, Any], stream: bool) -> None:
    for headers, more in ((HEADER, {}), ({}, {"explain": True})):
        reply = server.http().post(path, json=body | more | {"stream": stream}, headers=headers)
        assert reply.status_code == 200, reply.text
        text = reply.text.removesuffix("data: [DONE]\n\n").rstrip()
        last = json.loads(text.splitlines()[-1].removeprefix("data: "))
        summed(last["explain"])
        assert {"prefill 1", "decode", "queue"} <= names(last["explain"])
    plain = server.http().post(path, json=body | {"stream": stream})
    assert '"explain"' not in plain.text


def test_official_clients_read_explained_replies(server: Running) -> None:
    client = server.openai(default_headers=HEADER).chat.completions
    whole = client.create(model="mini", messages=ASK, max_tokens=5)
    assert whole.model_extra is not None and whole.model_extra["explain"]["name"] == "request"
    *_, last = client.create(model="mini", messages=ASK, max_tokens=5, stream=True)
    assert last.choices == [] and last.model_extra is not None and "explain" in last.model_extra
    message = server.anthropic(default_headers=HEADER).messages.create(
        model="mini", messages=ASK, max_tokens=5
    )
    assert message.model_extra is not None and "explain" in message.model_extra


def test_a_constraint_and_drafts_are_parts(server: Running) -> None:
    body = {"messages": ASK, "max_tokens": 40, "explain": True, "guided_regex": "(ls -l ){3}"}
    tree = server.http().post("/v1/chat/completions", json=body).json()["explain"]
    summed(tree)
    assert "compile grammar" in names(tree)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b"{}", b'{"explain":1}'),
        (b'{"a":{}}', b'{"a":{},"explain":1}'),
        (b'{"a":1}\n', b'{"a":1,"explain":1}\n'),
        (b'data: {"a":1}\n\ndata: [DONE]\n\n', b'data: {"a":1,"explain":1}\n\ndata: [DONE]\n\n'),
        (b"[1]", b"[1]"),
        (b"", b""),
    ],
)
def test_the_field_is_in_the_last_object(body: bytes, after: bytes) -> None:
    assert with_field(body, b"1") == after
