"""search(), vector_search() and text_search() as tables of a statement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataEngineMaker
from index_stores import STORES
from search_fixture import fill

from encoder_models import load_encoders
from headrace.config.search_settings import IndexStores, read_search
from headrace.data.engine import DataEngine
from headrace.errors import HeadraceError
from headrace.inference.local_models import LocalModels
from headrace.search.index import IndexMeta
from headrace.search.indexes import Indexes

pytest.importorskip("duckdb", reason="needs headrace[data]")


class Searched:
    """An index of three texts, the model that it was made by, and statements over it."""

    def __init__(self, folder: Path, held: ExitStack, stores: IndexStores | None = None) -> None:
        [embedder] = load_encoders(folder / "models", held, "embedder")
        self.indexes = Indexes(folder / "search", stores)
        index = self.indexes.find_or_make("fruit", IndexMeta(model="embedder", chunk_tokens=32))
        asyncio.run(fill(index, embedder))
        self.models = LocalModels([embedder])
        held.callback(self.models.close)
        held.callback(self.indexes.close)

    def rows(self, data: DataEngine, sql: str, *parameters: Any, **more: Any) -> list[dict[str, Any]]:
        given = {"models": self.models, "indexes": self.indexes} | more
        return json.loads(data.sql(sql, parameters, format="json", ruled=False, **given).body)


@pytest.fixture(scope="module", params=STORES)
def searched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    folder, stores = tmp_path_factory.mktemp("searched"), None
    with ExitStack() as held:
        if request.param == "pgvector":
            server = request.getfixturevalue("pgvector")
            held.callback(server.store(folder).close)
            stores = read_search(server.settings())
        yield Searched(folder, held, stores)


@pytest.fixture
def data(engine: DataEngineMaker, tmp_path: Path) -> DataEngine:
    (tmp_path / "prices.csv").write_text("fruit,eur\napples,3\nlemons,2\n")
    return engine({"prices": f"file:{tmp_path}/prices.csv"})


def test_hits_are_rows_that_join(searched: Searched, data: DataEngine) -> None:
    [first, *_] = found = searched.rows(data, "SELECT * FROM search('fruit', 'sour lemons')")
    assert first["dataset"] == "fruit" and first["key"] == "lemons"
    assert first["text"] == "yellow lemons are sour"
    assert (first["start_char"], first["end_char"], first["bm25_rank"]) == (0, 22, 1)
    assert dict(first["attributes"]) == {"color": "yellow", "price": "2", "ripe": "false"}
    assert [one["_score"] for one in found] == sorted((one["_score"] for one in found), reverse=True)
    sql = """
        SELECT s.key, p.eur FROM vector_search(fruit, ?, top := 3) AS s JOIN prices p ON p.fruit = s.key
        WHERE p.eur < $2 ORDER BY s.key
    """
    assert searched.rows(data, sql, "something sour", 3) == [{"key": "lemons", "eur": 2}]
    twice = (
        "SELECT count(*) AS n FROM search(fruit, 'a') AS a, search(fruit, 'a') b, text_search(fruit, 'sour')"
    )
    assert searched.rows(data, twice) == [{"n": 9}]
    only = "SELECT key FROM text_search(fruit, 'sweet ' || 'plums', filter := 'price > 4')"
    assert searched.rows(data, only) == [{"key": "plums"}]
    limited = "WITH q AS (SELECT key FROM search(fruit, 'trees', 1)) SELECT * FROM q"
    assert searched.rows(data, limited) == [{"key": "apples"}]
    assert searched.rows(data, "SELECT key FROM search(fruit, 'trees')", describe=True) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("search('gone', 'x')", "no index 'gone'"),
        ("search('fruit')", "has 1 arguments"),
        ("search('fruit', 7)", "Expected `str`"),
        ("search('fruit', '')", "text of the search is empty"),
        ("search('fruit', 'x', top := 0)", "limit is 0"),
        ("search('fruit', 'x', tpo := 1)", "unknown field `tpo`"),
        ("search('fruit', 'x', filter := 'price >')", "cannot be read"),
        ("search('../fruit', 'x')", "no name of an index"),
        ("search('fruit', fruit) , prices", "name no columns"),
        ("prices, search('fruit', (SELECT fruit FROM prices LIMIT 1))", "name no columns"),
        ("__search_0", "no dataset is named"),
        ("nothing_search('fruit', 'x')", "may not be used"),
    ],
)
def test_what_is_no_search(searched: Searched, data: DataEngine, call: str, words: str) -> None:
    with pytest.raises(HeadraceError, match=words):
        searched.rows(data, f"SELECT * FROM {call}")


def test_where_nothing_can_be_searched(searched: Searched, data: DataEngine) -> None:
    with pytest.raises(HeadraceError, match="may not be used"):
        searched.rows(data, "SELECT * FROM search('fruit', 'x')", indexes=None)
    many = ", ".join(f"search('fruit', 'x{n}') AS s{n}" for n in range(17))
    with pytest.raises(HeadraceError, match="17 searches"):
        searched.rows(data, f"SELECT 1 FROM {many}")
