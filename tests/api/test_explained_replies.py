"""EXPLAIN in the replies of all surfaces, over the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from in_process import Running, running_server

from headrace.api.http.call_context import HttpCall
from headrace.api.http.explaining import Explaining, with_field
from headrace.inference.accounts import Account
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.keys import KeyLimits

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


def test_a_header_that_is_neither_yes_nor_no_is_refused(server: Running) -> None:
    body = {"prompt": "ls", "max_tokens": 1}
    reply = server.http().post("/v1/completions", json=body, headers={"X-Headrace-Explain": "maybe"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-headrace-explain")
    assert "explain" not in reply.json()


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


def sent(
    media_type: str, *bodies: bytes, length: int | None = None
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """The headers and bodies of an explained reply that is sent in so many messages."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def reply() -> None:
        account = Account("", KeyLimits(None, None, None, None))
        call = HttpCall(request_id="r", method="POST", path="/", account=account, explain=True)
        explaining = Explaining(call, send)
        headers = [(b"content-type", media_type.encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await explaining({"type": "http.response.start", "status": 200, "headers": headers})
        for place, body in enumerate(bodies):
            more = place < len(bodies) - 1
            await explaining({"type": "http.response.body", "body": body, "more_body": more})

    asyncio.run(reply())
    return dict(messages[0]["headers"]), [one["body"] for one in messages[1:]]


def test_a_length_is_that_of_the_explained_body() -> None:
    headers, [body] = sent("application/json", b'{"a":1}', length=7)
    assert headers[b"content-length"] == str(len(body)).encode() and b'"explain"' in body


def test_json_in_several_messages_keeps_its_length_and_bytes() -> None:
    headers, bodies = sent("application/json", b'{"a":', b"1}", length=7)
    assert headers[b"content-length"] == b"7" and b"".join(bodies) == b'{"a":1}'


def test_nothing_follows_the_end_of_a_stream() -> None:
    end = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    assert sent("text/event-stream", b"data: {}\n\n", end, b"")[1][-1] == b""


def test_what_is_read_is_not_explained(server: Running) -> None:
    http = server.http()
    plain, explained = http.head("/v1/models"), http.head("/v1/models", headers=HEADER)
    assert explained.headers["content-length"] == plain.headers["content-length"] != "0"
    assert '"explain"' not in http.get("/v1/models", headers=HEADER).text


def test_a_stream_of_one_line_has_its_length(server: Running) -> None:
    """What Ollama answers for a model that is here is one line with a length, which the tree changes."""
    reply = server.http().post("/api/pull", json={"model": "mini", "explain": True})
    assert reply.status_code == 200
    assert "explain" in reply.json()
    assert int(reply.headers["content-length"]) == len(reply.content)
