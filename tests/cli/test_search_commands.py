"""`headrace ingest` and `headrace search`: files in, hits out; what changed, what is gone, what fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from index_stores import PASSWORD, Server
from invocation import Outcome

from headrace import Data
from headrace.search.index import IndexMissing


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "docs"
    (folder / "more").mkdir(parents=True)
    (folder / "tar.md").write_text(
        "# Archives\n\nUnpack an archive with tar.\n\n## Disks\n\nShow the use of disks."
    )
    (folder / "more" / "grep.txt").write_text("Find a text in files with grep.")
    (folder / ".hidden.md").write_text("hidden")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "loop").symlink_to("..")
    return folder


def test_ingest_and_search(inside: Callable[..., Outcome], docs: Path) -> None:
    first = inside("ingest", "docs", "--into", "notes", "--attribute", "year=2026", "--json")
    assert first.code == 0, first.stderr
    report = json.loads(first.stdout)
    assert (report["added"], report["chunks"], report["skipped"], report["failed"]) == (2, 2, 1, {})

    again = json.loads(
        inside("ingest", "docs", "--into", "notes", "--attribute", "year=2026", "--json").stdout
    )
    assert (again["added"], again["changed"], again["same"], again["chunks"]) == (0, 0, 2, 0)

    found = inside("search", "unpack archives", "--in", "notes", "--limit", "1")
    score, key, span, text = found.stdout.strip().split("\t")
    assert float(score) > 0
    assert (key, span) == ("docs/tar.md", "0-73")
    assert text.startswith("# Archives Unpack an archive")

    hits = json.loads(inside("search", "files", "--where", "kind = 'text' AND year >= 2026", "--json").stdout)
    assert [one["hit"]["key"] for one in hits] == ["docs/more/grep.txt"]
    assert hits[0]["hit"]["attributes"] == {
        "path": "docs/more/grep.txt",
        "name": "grep.txt",
        "kind": "text",
        "year": 2026,
    }
    assert inside("search", "files", "--where", "year < 2026").stderr == "nothing was found\n"

    (docs / "tar.md").unlink()
    (docs / "more" / "grep.txt").write_text("Find a text in files with ripgrep.")
    changed = inside("ingest", "docs", "--into", "notes")
    assert "0 documents added, 1 changed, 0 as they were, 1 removed" in changed.stdout
    keys = [one["hit"]["key"] for one in json.loads(inside("search", "archive ripgrep", "--json").stdout)]
    assert keys == ["docs/more/grep.txt"]


def test_what_fails_is_named_and_the_rest_goes_on(inside: Callable[..., Outcome], docs: Path) -> None:
    (docs / "bad.txt").write_bytes(b"ab\xff")
    (docs / "empty.md").write_text("")
    (docs / "\x1b[31mred.md").write_text("")
    Path(os.fsdecode(os.fsencode(docs) + b"/no\xff.md")).write_text("A name of another encoding.")
    done = inside("ingest", "docs", "--into", "notes")
    assert done.code == 1
    assert "2 documents added" in done.stdout
    assert "error: docs/bad.txt cannot be read: it is no text in UTF-8 (byte 2)" in done.stderr
    assert "error: docs/empty.md cannot be read: it is empty" in done.stderr
    assert "error: the name of docs/no\\xff.md is no UTF-8: rename it" in done.stderr
    assert "error: docs/\\x1b[31mred.md cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            ("search", "x", "--in", "nots"),
            1,
            "there is no index 'nots': there is none; `headrace ingest PATH --into",
        ),
        (("search", "x"), 1, "`headrace ingest PATH --into docs` makes one"),
        (("search", "x", "--where", "a ="), 1, "where cannot be read"),
        (("ingest", "nothing", "--into", "notes"), 2, "nothing is no file and no folder"),
        (("ingest", "docs", "--into", "../x"), 1, "no name of an index"),
        (("ingest", "docs", "--into", "notes", "--attribute", "x"), 2, "NAME=VALUE"),
        (("ingest", "docs"), 2, "--into"),
    ],
)
def test_errors(
    inside: Callable[..., Outcome], docs: Path, words: tuple[str, ...], code: int, error: str
) -> None:
    done = inside(*words)
    assert done.code == code
    assert error in done.stderr


def test_an_index_is_by_one_model(inside: Callable[..., Outcome], docs: Path) -> None:
    assert inside("ingest", "docs", "--into", "notes").code == 0
    other = inside("ingest", "docs", "--into", "notes", "--chunk", "64")
    assert other.code == 1
    assert "was made by the model embed in chunks of 256 tokens" in other.stderr


def test_from_python(inside: Callable[..., Outcome], docs: Path) -> None:
    pytest.importorskip("duckdb", reason="needs headrace[data]")
    assert inside("ingest", "docs", "--into", "notes").code == 0
    with Data(datasets={}) as data:
        [best] = data.search("unpack an archive", ["notes"], where="kind = 'markdown'", limit=1)
        assert best.index == "notes"
        assert best.hit.key == "docs/tar.md"
        assert best.hit.title == "Archives"
        with pytest.raises(IndexMissing, match="did you mean 'notes'"):
            data.search("x", ["note"])


def test_an_index_in_a_database(
    inside: Callable[..., Outcome], docs: Path, pgvector: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pgvector.store(docs.parent / "data" / "headrace" / "search")
    monkeypatch.setenv("SEARCH_PASSWORD", PASSWORD)
    (docs.parent / "headrace.toml").write_text(
        f'[search.indexes.notes]\nstore = "{store.address}"\nsecret = "env:SEARCH_PASSWORD"\n'
    )
    for into in ("notes", "here"):
        done = inside("ingest", "docs", "--into", into, "--json")
        assert json.loads(done.stdout)["added"] == 2, done.stderr
    assert json.loads(inside("ingest", "docs", "--into", "notes", "--json").stdout)["same"] == 2
    found = [inside("search", "unpack archives", "--in", into, "--json").stdout for into in ("notes", "here")]
    there, here = ([one["hit"] for one in json.loads(text)] for text in found)
    assert there == here
    assert there[0]["key"] == "docs/tar.md"
    assert {one.name for one in store.folder.iterdir()} == {"here"}
    assert store.indexes.names() == ["notes"]
    monkeypatch.setenv("SEARCH_PASSWORD", "wrong-password")
    refused = inside("search", "archives", "--in", "notes")
    assert refused.code == 1
    assert "the index notes refuses the user or the password" in refused.stderr
    assert "wrong-password" not in refused.stdout + refused.stderr
    store.close()
