"""Rerank, score and classify over HTTP, of tiny models, in the bodies of each dialect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Running, running_server

from head_models import head_model
from headrace.engine.request import EngineRequest, EventCallback
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from tiny import tiny_model

QUERY, DOCUMENTS = "cat", ["a cat", "dogs run", "the sea"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = head_model(tmp_path_factory.mktemp("cross"), "heads/qwen3_reward")
    model = load_model(str(folder), EngineOptions(threads=1, cache_dir=None))
    with running_server(model, offline=True) as running:
        yield running
    model.close()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = head_model(tmp_path_factory.mktemp("classifier"), "heads/bert_classify")
    model = load_model(str(folder), EngineOptions(threads=1, cache_dir=None))
    with running_server(model, offline=True) as running:
        yield running
    model.close()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = load_model(str(tiny_model(tmp_path_factory.mktemp("decoder"))), EngineOptions(threads=1))
    with running_server(model, offline=True) as running:
        yield running
    model.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tiny_model(tmp_path_factory.mktemp("embedder"), "encoders/bert")
    model = load_model(str(folder), EngineOptions(threads=1))
    with running_server(model, offline=True) as running:
        yield running
    model.close()


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/rerank", "documents"), ("/rerank", "texts"), ("/v2/rerank", "documents")]
)
def test_errors_name_the_field_that_was_sent(reranker: Running, path: str, field: str) -> None:
    reply = reranker.http().post(path, json={"query": QUERY, field: ["a cat", "cat " * 5000]})
    assert reply.status_code == 400, reply.text
    found: Any = reply.json()
    shape = found if isinstance(found["error"], str) else found["error"]  # TEI's is a text
    assert shape["param"] == field


def test_errors_of_tei_name_its_inputs(embedder: Running) -> None:
    reply = embedder.http().post("/embed", json={"inputs": ["a", "cat " * 5000]})
    assert reply.status_code == 400, reply.text
    assert reply.json()["param"] == "inputs"


def post(server: Running, path: str, **body: Any) -> Any:
    reply = server.http().post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_every_dialect_ranks_alike(reranker: Running) -> None:
    tei = post(reranker, "/rerank", query=QUERY, texts=DOCUMENTS, return_text=True)
    assert [one["text"] for one in tei] == [DOCUMENTS[one["index"]] for one in tei]
    order = [(one["index"], one["score"]) for one in tei]
    assert [score for _, score in order] == sorted((score for _, score in order), reverse=True)
    documents = [DOCUMENTS[0], *({"text": text} for text in DOCUMENTS[1:])]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/api/rerank", "/reranking", "/v1/reranking"):
        found = post(reranker, path, query=QUERY, documents=documents, top_n=2, return_documents=True)
        assert [(one["index"], one["relevance_score"]) for one in found["results"]] == order[:2]
        assert found["results"][0]["document"] == {"text": DOCUMENTS[order[0][0]]}
        assert found["usage"]["total_tokens"] > 10 and found["model"] == reranker.model.name
    scores = post(reranker, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)["data"]
    assert {one["index"]: one["score"] for one in scores} == dict(order)


def test_tasks_are_as_urgent_as_they_say(reranker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, float | None]]()
    submit = reranker.model.engine.submit

    def noted(request: EngineRequest, sink: EventCallback) -> Any:
        asked.append((request.priority, request.deadline_s))
        return submit(request, sink)

    monkeypatch.setattr(reranker.model.engine, "submit", noted)
    ranked, scored = {"query": QUERY, "documents": ["a cat"]}, {"text_1": QUERY, "text_2": "a cat"}
    for path, body in (("/v1/rerank", ranked), ("/v1/score", scored), ("/v1/classify", {"input": "a cat"})):
        asked.clear()
        post(reranker, path, **body)
        post(reranker, path, **body, service_tier="flex", deadline_s=60)
        post(reranker, path, **body, priority=-3)
        assert asked == [(0, None), (100, 60.0), (-3, None)], path
        both = {"service_tier": "flex", "priority": 1}
        refused = reranker.http().post(path, json=body | both)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "service_tier")


def test_an_alias_ranks_scores_and_finds_entities(reranker: Running, tmp_path: Path) -> None:
    """Names that Ollama's clients give are known to tasks, too, whose models are leased."""
    body = {"query": QUERY, "documents": DOCUMENTS}
    with running_server(reranker.model, offline=True, store=str(tmp_path / "store.sqlite3")) as server:
        name = reranker.model.name
        assert server.http().post("/v1/rerank", json=body | {"model": "mine"}).status_code == 404
        server.http().post("/api/copy", json={"source": name, "destination": "mine"}).raise_for_status()
        create = {"model": "spoken", "from": name, "system": "S", "stream": False}
        server.http().post("/api/create", json=create).raise_for_status()
        for path in ("/v1/rerank", "/v2/rerank", "/api/rerank"):
            ranked = post(server, path, **body)
            assert post(server, path, model="mine", **body)["results"] == ranked["results"]
        assert post(server, "/v1/score", model="mine", text_1=QUERY, text_2=DOCUMENTS)["model"] == name
        spoken = post(server, "/v1/rerank", model="spoken", **body)
        assert [warning["param"] for warning in spoken["warnings"]] == ["model"]
        refused = server.http().post("/v1/entities", json={"input": "a", "labels": ["b"], "model": "mine"})
        assert refused.status_code == 400 and "cannot find entities" in refused.json()["error"]["message"]


def test_cohere_s_client(reranker: Running) -> None:
    cohere = pytest.importorskip("cohere", reason="make test-frameworks installs it")
    for client in (cohere.Client, cohere.ClientV2):
        made = client(api_key="none", base_url=reranker.url)
        found = made.rerank(model=reranker.model.name, query=QUERY, documents=DOCUMENTS, top_n=2)
        assert (
            len(found.results) == 2 and found.results[0].relevance_score >= found.results[1].relevance_score
        )


def test_classes_of_a_model(classifier: Running) -> None:
    found = post(classifier, "/v1/classify", input=["a cat", "the sea"])
    assert [one["index"] for one in found["data"]] == [0, 1]
    for one in found["data"]:
        assert one["num_classes"] == len(one["probs"]) == len(one["labels"])
        assert one["label"] == one["labels"][one["probs"].index(max(one["probs"]))]
    assert post(classifier, "/classify", input="a cat")["data"][0] == found["data"][0]


def test_a_decoder_chooses_among_labels(decoder: Running) -> None:
    [found] = post(decoder, "/v1/classify", input="a cat", labels=["animal", "water"])["data"]
    assert sum(found["probs"]) == pytest.approx(1) and found["labels"] == ["animal", "water"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": [1]}, "documents"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/classify", {"input": []}, "input"),
        ("/v1/classify", {"input": ["a"] * 2049}, "input"),
        ("/v1/classify", {"input": "a", "labels": []}, "labels"),
        ("/v1/classify", {"input": "a", "labels": ["a", ""]}, "labels"),
        ("/v1/classify", {"input": "a", "labels": [str(n) for n in range(1001)]}, "labels"),
        (
            "/v1/classify",
            {"input": "a", "labels": ["a", "b"], "hypothesis_template": "x"},
            "hypothesis_template",
        ),
        ("/v1/classify", {"input": "a", "multi_label": True}, "multi_label"),
    ],
)
def test_bad_fields_are_named(reranker: Running, path: str, body: dict[str, Any], param: str) -> None:
    reply = reranker.http().post(path, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()
    assert (error if isinstance(error["error"], str) else error["error"])["param"] == param


LONG = "a" * 600


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["a", LONG]}, "documents"),
        ("/v1/rerank", {"query": LONG, "documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "texts": ["a", LONG]}, "texts"),
        ("/v1/score", {"text_1": "a", "text_2": ["a", LONG]}, "text_2"),
        ("/v1/score", {"text_1": LONG, "text_2": ["a"]}, "text_1"),
    ],
)
def test_the_field_of_a_text_that_is_too_long_is_named(
    embedder: Running, path: str, body: dict[str, Any], param: str
) -> None:
    error = embedder.http().post(path, json=body).json()
    error = error if isinstance(error["error"], str) else error["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")


def test_models_say_what_they_can_do(decoder: Running, classifier: Running) -> None:
    reply = decoder.http().post("/v1/classify", json={"input": "a"})
    assert reply.status_code == 400
    assert "cannot classify texts, it can generate text" in reply.json()["error"]["message"]
    reply = decoder.http().post("/pooling", json={"input": "a"})
    assert reply.status_code == 400
    assert "cannot embed texts, it can generate text" in reply.json()["error"]["message"]
    reply = classifier.http().post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert reply.status_code == 400
    assert "a reranker has one score" in reply.json()["error"]["message"]


def test_tei_s_endpoints(classifier: Running, embedder: Running) -> None:
    labels = post(classifier, "/predict", inputs="a cat")
    assert labels == sorted(labels, key=lambda one: -one["score"]) and len(labels) > 1
    assert post(classifier, "/predict", inputs=[["a cat"], ["a", "cat"]])[0] == labels
    pair = post(classifier, "/predict", inputs=["a", "cat"], raw_scores=True)
    assert pair != labels and len(pair) == len(labels)
    vectors = np.array(post(embedder, "/embed", inputs=["a cat", "the sea"]))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
    [cosine] = post(embedder, "/similarity", inputs={"source_sentence": "a cat", "sentences": ["the sea"]})
    assert cosine == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)
    for path in ("/embed_sparse", "/embed_all", "/predict"):
        reply = embedder.http().post(path, json={"inputs": "a cat"})
        assert reply.status_code == 400 and "it can embed texts" in reply.json()["error"]
        assert reply.json()["error_type"] == "Validation"
