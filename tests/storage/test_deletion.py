"""What is deleted from the store is in none of its files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.storage import database as database_module
from headrace.storage.database import Database
from headrace.storage.deletion import delete_everywhere
from headrace.storage.responses import Responses, StoredItem

SEED = 2
"""With it SQLite moves a row that is deleted later, and its copy stays until the file is written anew."""


def text(word: str, length: int) -> bytes:
    return (word * (length // len(word) + 1))[: max(length, len(word))].encode()


def fill_and_delete(store: Database) -> set[bytes]:
    """The words of responses that were deleted, of all sizes, between others that are kept."""
    random_values, responses = random.Random(SEED), Responses(store)
    live, gone = dict[str, str](), set[bytes]()
    for number in range(500):
        name, word = f"resp_{random_values.getrandbits(64):016x}", f"SECRET{number:06d}."
        size = random_values.choice([30, 200, 900, 2500, 6000])
        item = StoredItem(f"it_{name}", text(word, size // 2 + 20))
        responses.add(name, "o", "in_progress", None, text(word, size), [item])
        output, events = (
            StoredItem(f"out_{name}", text(word, size // 3 + 20)),
            [text(word, 40), text(word, 90)],
        )
        responses.finish(name, "completed", text(word, size), [output], events)
        live[name] = word
        if random_values.random() < 0.6:
            gone_name = random_values.choice(list(live))
            gone.add(live.pop(gone_name).encode())
            assert delete_everywhere(store, gone_name, "o")
    return gone


def found(folder: Path, words: set[bytes]) -> list[bytes]:
    data = b"".join(one.read_bytes() for one in folder.iterdir())
    return [one for one in words if one in data]


def test_copies_of_moved_rows_are_erased(tmp_path: Path) -> None:
    store = Database(tmp_path / "store.sqlite3")
    gone = fill_and_delete(store)
    assert len(gone) > 250
    store.erase_copies()
    assert found(tmp_path, gone) == []
    store.close()


def test_a_large_file_is_written_anew_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "REWRITTEN_AT_ONCE", 0)
    written = list[str]()
    store = Database(tmp_path / "store.sqlite3")
    monkeypatch.setattr(store, "rewrite", lambda rewrite=store.rewrite: (written.append("anew"), rewrite()))
    responses = Responses(store)
    for name in "ab":
        responses.add(name, "o", "completed", None, b"{}", [])
        assert responses.delete("o", name)
    assert written == ["anew"]
    monkeypatch.setattr(database_module, "REWRITE_EVERY_S", 0.0)
    store.erase_copies()
    store.erase_copies()  # nothing was deleted since
    assert written == ["anew", "anew"]
    store.close()


def test_a_deletion_succeeds_while_another_program_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "store.sqlite3"
    store, other = Database(file), Database(file)
    Responses(store).add("a", "o", "completed", None, b"{}", [])
    assert delete_everywhere(store, "a", "o")
    with other.transaction():
        store.erase_copies()
    assert "until the next deletion" in caplog.text
    caplog.clear()
    store.erase_copies()
    assert not caplog.text
    store.close()
    other.close()
