"""The training text of the bundled model: split into chapters, cleaned; missing data is an error."""

from __future__ import annotations

import importlib
import io
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "“It’s late,” said she —\r\nand went   out. "


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "train")
    monkeypatch.delitem(sys.modules, "corpus", raising=False)
    return importlib.import_module("corpus")


def test_novels_become_clean_chapters(corpus: ModuleType, tmp_path: Path) -> None:
    chapter = SENTENCE * 30
    book = f"\ufeffA TITLE\r\n\r\n\r\n\r\n{chapter}\r\n\r\n{chapter}\r\n\r\n\r\n\r\n{chapter}"
    _write(tmp_path / corpus.PLAIN_ARCHIVE, {"Some_Book_1900.txt": book, corpus.HELD_OUT: chapter})
    _write(tmp_path / corpus.OTHER_ARCHIVE, dict.fromkeys(corpus.OTHER_NOVELS, chapter))
    novels = corpus.read_novels(tmp_path)
    clean = " ".join(['"It\'s late," said she - and went out.'] * 30)
    assert novels.plain == [f"{clean}\n\n{clean}", clean]
    assert novels.held_out == [clean]
    assert novels.other == [clean] * len(corpus.OTHER_NOVELS)


def test_a_missing_archive_is_named(corpus: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(corpus.MissingData, match=f"{corpus.PLAIN_ARCHIVE} is missing: pass --data"):
        corpus.read_novels(tmp_path)


def test_a_missing_novel_is_named(corpus: ModuleType, tmp_path: Path) -> None:
    _write(tmp_path / corpus.PLAIN_ARCHIVE, {})
    _write(tmp_path / corpus.OTHER_ARCHIVE, dict.fromkeys(corpus.OTHER_NOVELS, ""))
    with pytest.raises(corpus.MissingData, match=f"lack 1 novels: {corpus.HELD_OUT}"):
        corpus.read_novels(tmp_path)


def _write(path: Path, books: dict[str, str]) -> None:
    with tarfile.open(path, "w:xz") as archive:
        for name, text in books.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
