"""Tables of Delta Lake and Iceberg, Excel files, rows of pandas and polars: made by their own libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.config.extras import ExtraMissing
from headrace.data.client import Rows
from headrace.data.job import SqlAnswer

pa = pytest.importorskip("pyarrow", reason="headrace[data] is not installed")
ROWS = [{"id": 1, "city": "Rome"}, {"id": 2, "city": "Oslo"}, {"id": 3, "city": "Bonn"}]


def read(source: str) -> list[dict[str, object]]:
    with headrace.Data(datasets={"x": {"from": source}}) as data:
        return data.sql("SELECT * FROM x ORDER BY id").rows()


def test_delta(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    pytest.importorskip("duckdb_extension_delta", reason="headrace[lake] is not installed")
    deltalake.write_deltalake(str(tmp_path / "table"), pa.Table.from_pylist(ROWS[:2]))
    deltalake.write_deltalake(str(tmp_path / "table"), pa.Table.from_pylist(ROWS[2:]), mode="append")
    assert read(f"delta:{tmp_path}/table") == ROWS


def test_iceberg(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    pytest.importorskip("duckdb_extension_iceberg", reason="headrace[lake] is not installed")
    places = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/tables"}
    catalog = catalogs.SqlCatalog("test", **places)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=pa.Table.from_pylist(ROWS).schema)
    table.append(pa.Table.from_pylist(ROWS[:2]))
    table.append(pa.Table.from_pylist(ROWS[2:]))
    assert read("iceberg:" + table.metadata_location.removeprefix("file://")) == ROWS


def test_excel(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("duckdb_extension_excel", reason="headrace[data] is not installed")
    book = openpyxl.Workbook()
    for row in (["id", "city"], *([one["id"], one["city"]] for one in ROWS)):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert read(f"file:{tmp_path}/a.xlsx") == ROWS  # numbers of Excel are floats, which equal these


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No extra has these two."""
    pytest.importorskip("duckdb", reason="needs headrace[data]")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    rows = Rows(SqlAnswer((), 0, b""))
    for library in ("pandas", "polars"):
        with pytest.raises(ExtraMissing, match=f"pip install {library}"):
            getattr(rows, library)()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_conversions(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library)
    (tmp_path / "a.csv").write_text("id,city\n1,Rome\n2,Oslo\n")
    with headrace.Data(datasets={"x": {"from": f"file:{tmp_path}/a.csv"}}) as data:
        frame = getattr(data.sql("SELECT city FROM x ORDER BY id"), library)()
    assert list(frame["city"]) == ["Rome", "Oslo"]
