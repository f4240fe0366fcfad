"""Search over HTTP: hits and why they are hits, filters, errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_process import Running, server_of
from search_fixture import fill

from encoder_models import load_encoders
from headrace.search.index import IndexMeta
from headrace.search.indexes import Indexes


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("search")
    with ExitStack() as held:
        models = load_encoders(folder / "models", held, "embedder", "reranker")
        indexes = Indexes(folder / "search")
        index = indexes.find_or_make("fruit", IndexMeta(model="embedder", chunk_tokens=32))
        indexes.find_or_make("empty", IndexMeta(model="embedder", chunk_tokens=32))
        asyncio.run(fill(index, models[0]))
        yield held.enter_context(server_of(*models, store=folder / "store.sqlite3"))


def results(http: httpx.Client, text: str, **more: Any) -> list[dict[str, Any]]:
    reply = http.post("/v1/search", json={"text": text, **more})
    assert reply.status_code == 200, reply.text
    assert reply.json()["duration_ms"] > 0
    return reply.json()["results"]


def test_hits_and_why(searched: Running) -> None:
    found = results(
        searched.http(), "sour lemons", datasets=["fruit"], limit=2, additional_columns=["price", "x"]
    )
    assert len(found) == 2
    first = found[0]
    assert first["matches"] == {"text": "yellow lemons are sour"}
    assert first["dataset"] == "fruit"
    assert first["primary_key"] == {"key": "lemons"}
    assert first["data"] == {"price": 2}
    assert first["_score"] > found[1]["_score"]
    why = first["explain"]
    assert why["bm25_rank"] == 1
    assert 1 <= why["vector_rank"] <= 3
    assert (why["start"], why["end"], why["chunk"], why["generation"]) == (0, 22, 0, 1)


def test_conditions_keywords_and_modes(searched: Running) -> None:
    http = searched.http()
    assert [one["primary_key"]["key"] for one in results(http, "fruit", where="ripe")] == ["plums"]
    cheap = results(http, "sweet plums", where="price < 5 AND color IN ('red', 'yellow')")
    assert {one["primary_key"]["key"] for one in cheap} == {"apples", "lemons"}
    assert [one["primary_key"]["key"] for one in results(http, "trees", mode="text")] == ["apples"]
    assert len(results(http, "nothing like it", mode="vector")) == 3
    assert [one["primary_key"]["key"] for one in results(http, "lemons", keywords=["trees"])] == ["apples"]
    assert results(http, "lemons", datasets=["empty"]) == []


def test_names_that_no_document_has_are_warned_of(searched: Running) -> None:
    def warnings(**more: Any) -> list[dict[str, str]]:
        reply = searched.http().post("/v1/search", json={"text": "fruit", **more})
        assert reply.status_code == 200, reply.text
        return json.loads(reply.headers.get("x-headrace-warnings", "[]"))

    [said] = warnings(where="prize < 5 OR color = 'red'")
    assert said == {
        "param": "where",
        "message": "no document has an attribute 'prize': did you mean 'price'?",
    }
    [said] = warnings(where="nothing IS NULL", datasets=["fruit", "empty"])
    assert said["message"].startswith("no document has an attribute 'nothing': there are color, price")
    [said] = warnings(additional_columns=["price", "colour", 'a "b"'])
    assert (said["param"], "did you mean 'color'" in said["message"]) == ("additional_columns", True)
    assert warnings(where="price < 5") == warnings(where="x = 1", datasets=["empty"]) == []


def test_a_reranker_reads_the_best(searched: Running) -> None:
    http = searched.http()
    for rerank in (True, "reranker"):
        found = results(http, "lemons", rerank=rerank)
        scores = [one["explain"]["rerank_score"] for one in found]
        assert scores == sorted(scores, reverse=True)
        assert [one["_score"] for one in found] == scores


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (
            {"text": "x", "datasets": ["fruits"]},
            404,
            "did you mean 'fruit'.*headrace ingest PATH --into fruits",
        ),
        ({"text": "x", "datasets": ["../store"]}, 400, "no name of an index"),
        ({"text": ""}, 400, "text"),
        ({"text": "  "}, 400, "empty"),
        ({"text": "x", "limit": 0}, 400, "limit"),
        ({"text": "x", "where": "price <"}, 400, "where cannot be read"),
        ({"text": "x", "where": "1=1; DROP TABLE chunks"}, 400, "where cannot be read"),
        ({"text": "x", "mode": "magic"}, 400, "mode"),
        ({"text": "x", "rerank": "embedder2"}, 404, "embedder2"),
    ],
)
def test_errors(searched: Running, body: Any, status: int, words: str) -> None:
    reply = searched.http().post("/v1/search", json=body)
    assert reply.status_code == status, reply.text
    assert re.search(words, reply.json()["error"]["message"])


def test_no_index_at_all(serve: Callable[..., Running], tmp_path: Path) -> None:
    reply = serve(store=tmp_path / "s.sqlite3").http().post("/v1/search", json={"text": "x"})
    assert reply.status_code == 404
    assert "headrace ingest PATH --into docs" in reply.json()["error"]["message"]


def test_search_is_a_tool(searched: Running) -> None:
    pytest.importorskip("mcp", reason="needs headrace[tools]")
    http = searched.http()
    assert "search" in [one["name"] for one in http.get("/v1/tools").json()["data"]]
    asked = {"arguments": {"text": "red apples", "datasets": ["fruit"], "limit": 1}}
    [hit] = json.loads(http.post("/v1/tools/search", json=asked).json()["text"])
    assert (hit["key"], hit["characters"], hit["text"]) == ("apples", [0, 24], "red apples grow on trees")
    missing = {"arguments": {"text": "x", "datasets": ["nothing"]}}
    assert http.post("/v1/tools/search", json=missing).json()["is_error"]
