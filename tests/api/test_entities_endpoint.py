"""POST /v1/entities with the bundled tagger: replies, places in code points, and bodies that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake import FakeModel
from in_process import Running, running_server

from headrace import LLM
from headrace.engine.client import LoadedModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

TEXT = "My name is John Miller and I live in Berlin"
LABELS = ["person", "location"]
COMBINED = "👩‍🚀 cafe\u0301 — My name is John Miller 👍🏽 and I live in Berlin"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("tagger", EngineOptions(threads=1, cache_dir=None))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def server(model: LoadedModel) -> Iterator[Running]:
    with running_server(model, offline=True) as running:
        yield running


def post(server: Running, **body: Any) -> tuple[int, dict[str, Any]]:
    reply = server.http().post("/v1/entities", json=body)
    return reply.status_code, reply.json()


def test_entities_of_one_text_and_of_several(server: Running) -> None:
    code, one = post(server, input=TEXT, labels=LABELS)
    assert code == 200 and one["object"] == "list" and one["model"] == "tagger"
    [data] = one["data"]
    assert [(e["text"], e["label"], e["start"], e["end"]) for e in data["entities"]] == [
        ("John Miller", "person", 11, 22),
        ("Berlin", "location", 37, 43),
    ]
    assert all(0.5 < e["score"] < 1 for e in data["entities"])
    assert one["usage"]["prompt_tokens"] == one["usage"]["total_tokens"] > 10 and "warnings" not in one
    code, several = post(server, input=["", TEXT], labels=LABELS, model="tagger", threshold=0.5)
    assert code == 200
    assert [data["index"] for data in several["data"]] == [0, 1]
    assert several["data"][0]["entities"] == [] and several["data"][1]["entities"] == data["entities"]


def test_an_alias_finds_the_same(model: LoadedModel, tmp_path: Path) -> None:
    with running_server(model, offline=True, store=str(tmp_path / "store.sqlite3")) as server:
        server.ollama().copy("tagger", "mine")
        code, found = post(server, input=TEXT, labels=LABELS, model="mine")
        assert code == 200 and len(found["data"][0]["entities"]) == 2
        code, found = post(server, input=TEXT, labels=LABELS, model="mine:latest")
        assert code == 404 and "'mine:latest' is not served" in found["error"]["message"]


def test_python_and_http_find_the_same(server: Running) -> None:
    with LLM("tagger", threads=1, cache_dir=None) as llm:
        [found] = llm.entities(COMBINED, LABELS, threshold=0.3)
    _, reply = post(server, input=COMBINED, labels=LABELS, threshold=0.3)
    entities = reply["data"][0]["entities"]
    assert [(e["start"], e["end"], e["label"], e["score"]) for e in entities] == [
        (e.start, e.end, e.label, e.score) for e in found
    ]


def test_places_are_code_points(server: Running) -> None:
    _, reply = post(server, input=COMBINED, labels=LABELS, threshold=0.3)
    entities = reply["data"][0]["entities"]
    assert {"John Miller", "Berlin"} <= {e["text"] for e in entities}
    assert all(COMBINED[e["start"] : e["end"]] == e["text"] for e in entities)


def test_long_texts(server: Running) -> None:
    text = f"{TEXT}. " * 120
    code, refused = post(server, input=["short", text], labels=LABELS)
    assert code == 400 and refused["error"]["code"] == "context_length_exceeded"
    assert "text 1 has" in refused["error"]["message"] and refused["error"]["param"] == "input"
    code, cut = post(server, input=text, labels=LABELS, truncate=True)
    assert code == 200 and cut["warnings"][0]["param"] == "truncate"
    code, whole = post(server, input=text, labels=LABELS, stride=32)
    assert code == 200 and "warnings" not in whole
    entities = whole["data"][0]["entities"]
    assert sum(e["text"] == "John Miller" for e in entities) == 120
    assert len(entities) > len(cut["data"][0]["entities"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"labels": None}, "labels"),
        ({"labels": []}, "labels"),
        ({"labels": "person"}, "labels"),
        ({"labels": [""]}, "labels"),
        ({"labels": [1]}, "labels"),
        ({"labels": ["a", "a"]}, "labels"),
        ({"labels": [str(i) for i in range(10_000)]}, "labels"),
        ({"threshold": 0}, "threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": "high"}, "threshold"),
        ({"threshold": True}, "threshold"),
        ({"window": 0}, "window"),
        ({"stride": 1, "truncate": True}, "truncate"),
        ({"treshold": 0.5}, "treshold"),
    ],
)
def test_what_means_nothing_is_a_400_by_field(server: Running, body: dict[str, Any], param: str) -> None:
    code, reply = post(server, **{"input": TEXT, "labels": LABELS, **body})
    assert code == 400 and reply["error"]["param"] == param, reply


@pytest.mark.parametrize("threshold", ["NaN", "Infinity"])
def test_a_threshold_that_is_no_number_is_a_400(server: Running, threshold: str) -> None:
    data = f'{{"input": "a", "labels": ["b"], "threshold": {threshold}}}'
    reply = server.http().post("/v1/entities", content=data, headers={"content-type": "application/json"})
    assert reply.status_code == 400


def test_a_lone_surrogate_is_a_400(server: Running) -> None:
    data = '{"input": "\\ud800", "labels": ["b"]}'
    reply = server.http().post("/v1/entities", content=data, headers={"content-type": "application/json"})
    assert reply.status_code == 400


def test_names_that_are_asked_for_are_found_by_the_model(server: Running) -> None:
    body: dict[str, object] = {"input": TEXT + ", a@x.org", "entities": ["PERSON", "EMAIL_ADDRESS"]}
    found = server.http().post("/v1/redact", json=body).json()
    assert found["data"][0]["text"] == "My name is <PERSON_1> and I live in Berlin, <EMAIL_ADDRESS_1>"
    assert found["model"] == "tagger"
    body = {"text": TEXT, "language": "en", "entities": ["PERSON"]}
    [person] = server.http().post("/analyze", json=body).json()
    assert (person["entity_type"], person["start"], person["end"]) == ("PERSON", 11, 22)
    assert person["recognition_metadata"]["recognizer_name"] == "tagger"


def test_a_tagger_makes_no_vectors_and_no_text(server: Running) -> None:
    reply = server.http().post("/v1/embeddings", json={"model": "tagger", "input": "a"})
    assert reply.status_code == 400
    assert "tagger cannot embed texts, it can find entities" in reply.json()["error"]["message"]
    reply = server.http().post("/v1/completions", json={"model": "tagger", "prompt": "a"})
    assert reply.status_code == 400


def test_a_model_that_generates_finds_no_entities() -> None:
    with running_server(FakeModel(), offline=True) as running:
        code, reply = post(running, input=TEXT, labels=LABELS)
    assert code == 400 and reply["error"]["param"] == "model"
    assert "cannot find entities" in reply["error"]["message"]
