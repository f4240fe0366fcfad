"""Remote rerankers: Cohere's, Jina's and TEI's bodies, every surface that ranks, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_provider import Gateway, fail, send

from headrace.economy.ledger import Ledger
from headrace.storage.database import Database

Start = Callable[..., Gateway]
DOCUMENTS = ["a refund takes a week", "we are closed on Sunday", "late refunds"]
SCORES = (0.5, 0.1, 0.9)


def ranks(*scores: float, order: Any = None, **more: Any) -> Any:
    places = order or range(len(scores))
    results = [{"index": at, "relevance_score": scores[at]} for at in places]
    return send(json.dumps({"results": results, **more}).encode(), content_type="application/json")


def tei(*scores: float) -> Any:
    found = sorted(enumerate(scores), key=lambda one: -one[1])
    return send(
        json.dumps([{"index": at, "score": score} for at, score in found]).encode(),
        content_type="application/json",
    )


def post(server: Any, path: str = "/v1/rerank", **body: Any) -> Any:
    return server.http().post(path, json={"model": "far", "query": "refund", "documents": DOCUMENTS, **body})


@pytest.mark.parametrize("kind", ["cohere", "jina", "vllm"])
def test_coheres_body_there_and_back(gateway: Start, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for name in ("COHERE_API_KEY", "JINA_API_KEY"):
        monkeypatch.setenv(name, "some-key")
    server, provider = gateway(ranks(*SCORES, order=[2, 0, 1]), provider={"kind": kind})
    reply = post(server, top_n=2, return_documents=True)
    assert reply.status_code == 200, reply.text
    found = [(one["index"], one["document"]["text"]) for one in reply.json()["results"]]
    assert found == [(2, DOCUMENTS[2]), (0, DOCUMENTS[0])]
    assert reply.json()["results"][0]["relevance_score"] == pytest.approx(0.9)
    assert reply.headers["x-headrace-target"] == "far"
    [exchange] = provider.exchanges
    assert exchange.path == "/v1/rerank"
    more = {"return_documents": False} if kind == "jina" else {}
    assert exchange.body == {"model": "far-1", "query": "refund", "documents": DOCUMENTS, **more}


def test_teis_body_there_and_back(gateway: Start) -> None:
    server, provider = gateway(tei(*SCORES), provider={"kind": "tei"})
    reply = server.http().post("/rerank?", json={"model": "far", "query": "refund", "texts": DOCUMENTS})
    assert [one["index"] for one in reply.json()] == [2, 0, 1], reply.text
    assert provider.exchanges[0].body == {"query": "refund", "texts": DOCUMENTS, "truncate": False}


def test_every_surface(gateway: Start) -> None:
    server, provider = gateway(ranks(*SCORES), provider={"kind": "vllm"})
    for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/api/rerank", "/reranking", "/v1/reranking"):
        reply = post(server, path)
        assert [one["index"] for one in reply.json()["results"]] == [2, 0, 1], reply.text
    body = {"model": "far", "text_1": "refund", "text_2": DOCUMENTS}
    reply = server.http().post("/v1/score", json=body)
    assert [one["score"] for one in reply.json()["data"]] == pytest.approx(SCORES), reply.text
    assert len(provider.exchanges) == 7


def test_each_query_is_a_request(gateway: Start) -> None:
    server, provider = gateway(ranks(0.25, 0.75), ranks(0.5), provider={"kind": "vllm"})
    body = {"model": "far", "text_1": ["q", "r", "q"], "text_2": ["a", "b", "c"]}
    reply = server.http().post("/v1/score", json=body)
    assert [one["score"] for one in reply.json()["data"]] == [0.25, 0.5, 0.75], reply.text
    assert [one.body["documents"] for one in provider.exchanges] == [["a", "c"], ["b"]]


def test_it_fails_over(gateway: Start) -> None:
    server, provider = gateway(
        *(fail(500), ranks(*SCORES)),
        provider={"kind": "vllm"},
        remote={"best": {"targets": ["far", "work/other"]}},
    )
    reply = post(server, model="best")
    assert reply.status_code == 200 and reply.headers["x-headrace-attempts"] == "2", reply.text
    assert [one.body["model"] for one in provider.exchanges] == ["far-1", "other"]


@pytest.mark.parametrize(
    "reply",
    [
        ranks(0.5, 0.5),
        ranks(*SCORES, order=[0, 1, 1]),
        send(b'{"results":[{"index":0,"relevance_score":1e99}]}', content_type="application/json"),
        send(b'{"results":[{"index":0,"relevance_score":NaN}]}', content_type="application/json"),
        send(b'{"results":"x"}', content_type="application/json"),
        send(b"<html>", content_type="text/html"),
    ],
)
def test_what_cannot_be_right_is_an_error(gateway: Start, reply: Any) -> None:
    server, _ = gateway(reply, provider={"kind": "vllm"}, model={"max_attempts": 1})
    found = post(server)
    assert found.status_code == 502 and "far" in found.json()["error"]["message"], found.text


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("groq", {}, "ranks no texts"),
        ("vllm", {"max_tokens_per_doc": 9}, "max_tokens_per_doc"),
    ],
)
def test_what_a_target_cannot_do_is_refused(gateway: Start, kind: str, body: Any, said: str) -> None:
    server, fake = gateway(provider={"kind": kind})
    reply = post(server, **body)
    assert reply.status_code == 400 and said in reply.json()["error"]["message"], reply.text
    assert not fake.exchanges


def test_a_reranker_generates_nothing(gateway: Start) -> None:
    server, fake = gateway(provider={"kind": "tei"})
    ask = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
    reply = server.http().post("/v1/chat/completions", json=ask)
    assert reply.status_code == 400 and "generates no text" in reply.json()["error"]["message"], reply.text
    assert not fake.exchanges


def test_what_has_no_effect_is_said(gateway: Start) -> None:
    server, _ = gateway(ranks(*SCORES), provider={"kind": "vllm"})
    warned = post(server, instruction="x", use_activation=False, truncate=True).json()["warnings"]
    assert {one["param"] for one in warned} >= {"instruction", "raw_scores", "truncate"}


@pytest.mark.parametrize(
    ("more", "price", "usd"),
    [
        ({"usage": {"total_tokens": 40}}, {"input": 2}, 80e-6),
        ({"usage": {"prompt_tokens": 40, "total_tokens": 40}}, {"input": 2}, 80e-6),
        ({"meta": {"billed_units": {"search_units": 3}}}, {"rerank_searches": 2, "input": 0}, 6e-3),
    ],
)
def test_it_is_booked(gateway: Start, tmp_path: Path, more: Any, price: Any, usd: float) -> None:
    store = tmp_path / "store"
    server, _ = gateway(
        ranks(*SCORES, **more), provider={"kind": "vllm"}, prices={"work/far-1": price}, store=str(store)
    )
    assert float(post(server).headers["x-headrace-cost-usd"]) == pytest.approx(usd)
    [(_, entry)] = Ledger(Database(store)).entries()
    assert entry.status == "measured", entry
