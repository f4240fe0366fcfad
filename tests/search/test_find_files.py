"""Which files of a folder are ingested, and which names of indexes are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.search.index import IndexMissing
from headrace.search.indexes import Indexes
from headrace.search.ingest import find_files


def test_links_out_of_a_folder_are_left_out(tmp_path: Path) -> None:
    """A folder from a stranger would have any file of this machine read and found."""
    (tmp_path / "secret.txt").write_text("secret")
    docs = tmp_path / "docs"
    (docs / "inner").mkdir(parents=True)
    (docs / "a.md").write_text("a")
    (docs / "b.md").symlink_to("a.md")
    (docs / "inner" / "c.txt").symlink_to(tmp_path / "secret.txt")
    (docs / "d.md").symlink_to("nowhere.md")
    found = find_files([docs])
    assert [file.path.name for file in found.files] == ["a.md", "b.md"] and found.skipped == 1
    linked = tmp_path / "linked"
    linked.symlink_to(docs)
    assert len(find_files([linked, docs / "inner" / "c.txt"]).files) == 3  # what is named is read


def test_names_that_clients_make_up_are_not_kept(tmp_path: Path) -> None:
    indexes = Indexes(tmp_path)
    for number in range(10):
        with pytest.raises(IndexMissing):
            indexes.find(f"made_up_{number}")
    assert indexes._open == {}
