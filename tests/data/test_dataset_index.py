"""Indexes of datasets: what changed is embedded, what is gone is removed, nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="needs headrace[data]")

from data_servers import DataEngineMaker

from headrace.config.settings import Settings
from headrace.config.sources import load_settings
from headrace.data import indexing
from headrace.data.indexing import index_dataset
from headrace.errors import InvalidRequest, UsageError
from headrace.search.client import SearchClient
from headrace.search.index import IndexMeta
from headrace.search.indexes import IndexMissing, indexes_of
from headrace.search.ingest import IngestReport, find_files

INDEX = {"text": ["subject", "body"], "key": "id", "title": "subject", "attributes": ["vip", "day"]}
ROWS = [
    (1, "Refund", "The refund of my card has not come", True, "2026-01-02"),
    (2, "Login", "The password is refused", False, "2026-02-03"),
    (10, "Nothing", None, False, "2026-03-04"),
]


def write(path: Path, rows: list[tuple[object, ...]]) -> None:
    lines = ["id,subject,body,vip,day", *(",".join("" if v is None else str(v) for v in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"store": f"{tmp_path}/store.sqlite3"}, environ={}, folders=[])


def counts(report: IngestReport) -> tuple[int, int, int, int]:
    return report.added, report.changed, report.same, report.removed


def test_it_is_kept_up_to_date(
    engine: DataEngineMaker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "PAGE_ROWS", 2)  # several pages
    file = tmp_path / "tickets.csv"
    write(file, ROWS)
    made = engine({"tickets": {"from": f"file:{file}", "index": INDEX}})
    with SearchClient(settings) as client:
        assert counts(index_dataset(made, client, "tickets")) == (3, 0, 0, 0)
        hits = client.search("late refund", ["tickets"], where="vip AND day = '2026-01-02'")
        assert [(one.hit.key, one.hit.title) for one in hits] == [("1", "Refund")]
        assert counts(index_dataset(made, client, "tickets")) == (0, 0, 3, 0)
        write(file, [ROWS[0], (2, "Login", "The one-time code never arrives", False, "2026-02-03")])
        assert counts(index_dataset(made, client, "tickets")) == (0, 1, 1, 1)
        found = client.search("code", ["tickets"], mode="text")
        assert [one.hit.key for one in found] == ["2"]
        write(file, [ROWS[0], ROWS[0]])
        with pytest.raises(InvalidRequest, match="the key '1' of id is there twice"):
            index_dataset(made, client, "tickets")
        assert client.search("code", ["tickets"], mode="text")  # nothing was removed


def test_an_index_of_files_is_not_overwritten(
    engine: DataEngineMaker, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("# A\n\nSome words.\n")
    write(tmp_path / "tickets.csv", ROWS)
    made = engine({"tickets": {"from": f"file:{tmp_path}/tickets.csv", "index": INDEX}})
    with SearchClient(settings) as client:
        client.ingest(find_files([tmp_path / "a.md"]), "tickets")
        with pytest.raises(InvalidRequest, match="made of other documents"):
            index_dataset(made, client, "tickets")
        assert client.search("words", ["tickets"])


def test_settings_that_cannot_be(engine: DataEngineMaker, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path / "t.csv", ROWS)
    source = {"from": f"file:{tmp_path}/t.csv"}
    with pytest.raises(UsageError, match="show all rows to all keys"):
        engine({"t": source | {"index": INDEX, "where": {"analyst": "vip"}}})
    with pytest.raises(UsageError, match="needs text"):
        engine({"t": source | {"index": {"key": "id"}}})
    with pytest.raises(UsageError, match="unknown 'texts'"):
        engine({"t": source | {"index": {"texts": ["body"]}}})
    with SearchClient(settings) as client, pytest.raises(InvalidRequest, match="has no index"):
        index_dataset(engine({"t": source}), client, "t")


def test_indexes_that_ask_has_made_are_searched_by_name_only(settings: Settings) -> None:
    indexes = indexes_of(settings)
    indexes.find_or_make("ask-1f", IndexMeta(model="embed", chunk_tokens=64))
    with pytest.raises(IndexMissing):
        indexes.find_all(None)
    indexes.find_or_make("notes", IndexMeta(model="embed", chunk_tokens=64))
    assert [one.folder.name for one in indexes.find_all(None)] == ["notes"]
    assert [one.folder.name for one in indexes.find_all(["ask-1f"])] == ["ask-1f"]
