"""Vectors by remote models: OpenAI's and Google's bodies, every surface, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_provider import Exchange, Gateway, fail, send

from headrace.economy.ledger import Ledger
from headrace.storage.database import Database

Start = Callable[..., Gateway]
USAGE = {"prompt_tokens": 7, "total_tokens": 7}


def vectors(*rows: Any, usage: Any = USAGE, order: Any = None) -> Any:
    places = order or range(len(rows))
    data = [
        {"index": at, "embedding": row, "object": "embedding"} for at, row in zip(places, rows, strict=True)
    ]
    body = {"object": "list", "data": data, "usage": usage}
    return send(json.dumps(body).encode(), content_type="application/json")


def post(server: Any, path: str = "/v1/embeddings", **body: Any) -> Any:
    return server.http().post(path, json={"model": "far", **body})


def test_openais_body_there_and_back(gateway: Start) -> None:
    server, provider = gateway(vectors([0.0, 1.0], [0.5, 0.5], order=[1, 0]))
    reply = post(server, input=["a", "b"], dimensions=2)
    assert reply.status_code == 200, reply.text
    assert [one["embedding"] for one in reply.json()["data"]] == [[0.5, 0.5], [0.0, 1.0]]
    assert reply.json()["usage"]["prompt_tokens"] == 7
    assert reply.headers["x-headrace-target"] == "far"
    (exchange,) = provider.exchanges
    assert exchange.path == "/v1/embeddings"
    assert exchange.body == {
        "model": "far-1",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": 2,
    }


def test_googles_body_there_and_back(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "google-key")
    body = {"embeddings": [{"values": [1.0, 2.0]}]}
    reply = send(json.dumps(body).encode(), content_type="application/json")
    server, provider = gateway(reply, provider={"dialect": "google"})
    found = post(server, input="a", input_type="query", dimensions=2)
    assert found.status_code == 200, found.text
    assert found.json()["data"][0]["embedding"] == [1.0, 2.0]
    assert any(one["param"] == "usage" for one in found.json()["warnings"])
    (exchange,) = provider.exchanges
    assert exchange.path.endswith("/models/far-1:batchEmbedContents")
    assert exchange.body["requests"] == [
        {
            "model": "models/far-1",
            "content": {"parts": [{"text": "a"}]},
            "taskType": "RETRIEVAL_QUERY",
            "outputDimensionality": 2,
        }
    ]


def test_other_surfaces(gateway: Start) -> None:
    server, _ = gateway(vectors([3.0, 4.0]))
    assert post(server, "/api/embed", input="a").json()["embeddings"] == [[3.0, 4.0]]
    assert post(server, "/api/embeddings", prompt="a").json()["embedding"] == [3.0, 4.0]
    body = {"texts": ["a"], "input_type": "search_query", "embedding_types": ["float"]}
    reply = post(server, "/v2/embed", **body)
    assert reply.status_code == 200 and reply.json()["embeddings"]["float"] == [[3.0, 4.0]], reply.text
    made = server.openai().embeddings.create(model="far", input="a")
    assert made.data[0].embedding == [3.0, 4.0]


def test_it_fails_over(gateway: Start) -> None:
    server, provider = gateway(fail(500), vectors([1.0]), remote={"best": {"targets": ["far", "work/other"]}})
    reply = post(server, model="best", input="a")
    assert reply.status_code == 200 and reply.headers["x-headrace-attempts"] == "2"
    assert [one.body["model"] for one in provider.exchanges] == ["far-1", "other"]


async def slow(exchange: Exchange) -> None:
    await exchange.begin(content_type="application/json", content_length="999")
    await exchange.send(b'{"data":[')


@pytest.mark.parametrize(
    "reply",
    [
        vectors([1.0]),
        vectors([1.0], [1.0, 2.0]),
        vectors([], []),
        vectors([1.0], [2.0], order=[0, 0]),
        vectors([1.0], [2.0], order=[1, 2]),
        vectors([1.0], [1e308]),
        send(b'{"data":[{"embedding":[NaN]}]}', content_type="application/json"),
        send(b'{"data":"x"}', content_type="application/json"),
        send(b"<html>", content_type="text/html"),
        send(b"[" * 100_000, content_type="application/json"),
        slow,
    ],
)
def test_what_cannot_be_right_is_an_error(gateway: Start, reply: Any) -> None:
    server, _ = gateway(reply, model={"max_attempts": 1})
    found = post(server, input=["a", "b"])
    assert found.status_code == 502 and "far" in found.json()["error"]["message"], found.text


@pytest.mark.parametrize(
    ("provider", "body", "said"),
    [
        ({"dialect": "anthropic"}, {}, "no embeddings"),
        ({"kind": "groq"}, {}, "no embeddings"),
        ({}, {"input": [1, 2]}, "takes texts only"),
        ({}, {"prompt_name": "query"}, "prompt_name"),
    ],
)
def test_what_a_target_cannot_do_is_refused(gateway: Start, provider: Any, body: Any, said: str) -> None:
    server, fake = gateway(provider={**provider, "dialect": provider.get("dialect", "openai_chat")})
    reply = post(server, **{"input": "a", **body})
    assert reply.status_code == 400 and said in reply.json()["error"]["message"], reply.text
    assert not fake.exchanges


def test_other_tasks_need_a_model_of_this_machine(gateway: Start) -> None:
    server, fake = gateway()
    reply = post(server, "/v1/rerank", query="a", documents=["b"])
    assert reply.status_code in (400, 404) and "far" in reply.text
    assert not fake.exchanges


def test_it_is_booked(gateway: Start) -> None:
    prices = {"work/far-1": {"input": 2}}
    server, _ = gateway(vectors([1.0]), prices=prices)
    assert float(post(server, input="a").headers["x-headrace-cost-usd"]) == pytest.approx(7 * 2e-6)


def test_budgets_hold(gateway: Start, tmp_path: Path) -> None:
    """What is set aside bounds the inputs, and nothing is sent that the budget does not afford."""
    flags = {"prices": {"work/far-1": {"input": 1_000}}, "store": str(tmp_path / "store")}
    server, provider = gateway(vectors([1.0]), budgets={"all": {"usd": 0.05}}, **flags)
    assert post(server, input="a").status_code == 200  # 7 tokens: $0.007
    assert (
        post(server, input="word " * 10).status_code == 402
    )  # 50 bytes may be 50 tokens, and what is around
    assert len(provider.exchanges) == 1
    assert post(server, input="a").status_code == 200
    assert len(provider.exchanges) == 2


def test_usage_that_cannot_be_right_is_disputed(gateway: Start, tmp_path: Path) -> None:
    wrong = vectors([1.0], usage={"prompt_tokens": 9_000, "total_tokens": 9_000})
    store = tmp_path / "store"
    server, _ = gateway(wrong, prices={"work/far-1": {"input": 1}}, store=str(store))
    assert post(server, input="a").status_code == 200
    [(_, entry)] = Ledger(Database(store)).entries()
    assert entry.status == "disputed" and "9,000 tokens of input" in entry.reason
