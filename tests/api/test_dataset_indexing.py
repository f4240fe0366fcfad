"""A server brings indexes of datasets up to date itself, beside its requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_process import Running, server_of

from encoder_models import load_encoders

pytest.importorskip("duckdb", reason="needs headrace[data]")

INDEX = {"text": ["body"], "model": "embedder", "chunk": 32, "every_s": 0.5}


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    file = tmp_path / "fruit.csv"
    file.write_text("id,body\n1,yellow lemons are sour\n2,blue plums are sweet\n")
    datasets = {"fruit": {"from": f"file:{file}", "index": INDEX}, "plain": f"file:{file}"}
    with ExitStack() as held:
        models = load_encoders(tmp_path / "models", held, "embedder")
        store = tmp_path / "store.sqlite3"
        yield held.enter_context(server_of(*models, store=store, datasets=datasets)), file


def keys(http: httpx.Client, text: str) -> list[str]:
    reply = http.post("/v1/search", json={"text": text, "datasets": ["fruit"]})
    results: list[dict[str, Any]] = reply.json().get("results", [])
    return sorted(one["primary_key"]["key"] for one in results)


def wait_for(is_there: Callable[[], bool]) -> None:
    while not is_there():  # the test's own limit ends it
        time.sleep(0.1)


def test_it_follows_the_dataset(indexed: tuple[Running, Path], caplog: pytest.LogCaptureFixture) -> None:
    running, file = indexed
    http = running.http()
    wait_for(lambda: keys(http, "lemons") == ["1", "2"])
    file.write_text("id,body\n1,yellow lemons are sour\n3,red apples grow on trees\n")
    wait_for(lambda: keys(http, "apples") == ["1", "3"])
    with caplog.at_level(logging.WARNING, "headrace.api.dataset_indexing"):
        file.write_text("id,body\n1,one\n1,two\n")
        wait_for(lambda: "the key '1' of id is there twice" in caplog.text)
    assert keys(http, "apples") == ["1", "3"]  # what was there stays
    file.write_text("id,body\n4,green pears\n")
    wait_for(lambda: keys(http, "pears") == ["4"])


def test_the_server_ends_while_it_writes(tmp_path: Path) -> None:
    file = tmp_path / "many.csv"
    file.write_text("id,body\n" + "".join(f"{at},text number {at}\n" for at in range(20_000)))
    with ExitStack() as held:
        models = load_encoders(tmp_path / "models", held, "embedder")
        dataset = {"from": f"file:{file}", "index": INDEX}
        server = server_of(*models, store=tmp_path / "store.sqlite3", datasets={"many": dataset})
        with server as running:
            wait_for(lambda: (tmp_path / "search" / "many").exists())
            assert running.http().get("/health").status_code == 200
