"""An index in a folder: rows in and out, filters, ties, generations, maintenance, a crash at any point."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from index_rows import by_vector, check_whole, new_index, row

from headrace.inference.keywords import new_call
from headrace.search.index import IndexBusy, IndexDamaged
from headrace.search.local_index import LocalIndex
from headrace.search.searching import warn_of_unknown
from headrace.search.tables import locked


def test_names_in_a_warning_fit_into_a_header(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    long = {chr(ord("a") + place) + "🙂" * (50 + 3 * place): 1 for place in range(26)}
    index.upsert([row("a", "one", **long, **{"\x1b[31mred": 1})])
    for name in ("🙂" * 250, "nothing", "a" + "🙂" * 49):
        call = new_call()
        asyncio.run(warn_of_unknown([index], [name], "where", call))
        [warning] = call.warnings
        assert "there are a🙂" in warning.message or "did you mean" in warning.message
        assert len(json.dumps(warning.message)) < 2500
        assert warning.message.isprintable()


def test_maintenance_frees_what_is_dead(tmp_path: Path) -> None:
    index, reader = new_index(tmp_path / "i"), LocalIndex(tmp_path / "i")
    documents = [(f"k{i}", [f"text {i} first", f"text {i} second"]) for i in range(60)]
    index.upsert([row(key, *texts) for key, texts in documents])
    assert not index.maintain()
    by_vector(reader, "x")  # maps the files
    index.delete([key for key, _ in documents[:50:2]])
    left = documents[1:50:2] + documents[50:]
    assert index.version().dead == 50
    assert index.maintain()
    assert index.version().dead == 0
    assert sorted(path.name for path in (tmp_path / "i").glob("vectors*")) == [
        "vectors-1.f32",
        "vectors-1.i8",
    ]
    for one in (index, reader):
        check_whole(one, left)
    index.upsert([row("new", "a new text")])
    check_whole(reader, [*left, ("new", ["a new text"])])


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.search.tables.WAIT_S", 0.1)
    index = new_index(tmp_path / "i")
    with locked(index.folder), pytest.raises(IndexBusy, match="being written"):
        index.upsert([row("a", "one")])
    with pytest.raises(IndexBusy, match="just made"):
        new_index(tmp_path / "i")


def test_damaged_files(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    index.upsert([row("a", "one")])
    (tmp_path / "i" / "vectors-0.f32").write_bytes(b"")
    with pytest.raises(IndexDamaged, match="delete the folder"):
        by_vector(LocalIndex(tmp_path / "i"), "one")
    (tmp_path / "i" / "vectors-0.f32").unlink()
    with pytest.raises(IndexDamaged, match="delete the folder"):
        by_vector(LocalIndex(tmp_path / "i"), "one")
    for path in (tmp_path / "i").glob("index.sqlite*"):
        path.write_bytes(b"x" * 5000)
    with pytest.raises(IndexDamaged, match="damaged"):
        LocalIndex(tmp_path / "i").version()
    with pytest.raises(IndexDamaged, match="has no index"):
        LocalIndex(tmp_path / "j").version()
