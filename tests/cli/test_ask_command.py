"""`headrace ask`: rows and quotations, each with where it comes from."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from invocation import Outcome

pytest.importorskip("duckdb_extension_sqlite_scanner", reason="needs headrace[data]")


def test_the_example_is_made_and_answered(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    done = inside("ask", "--example")
    assert done.code == 0, done.stderr
    rows, statement, quote = done.stdout.splitlines()
    assert rows.endswith(": 2") and "customers" in statement and "'Oslo'" in statement
    sentence, _, place = quote.rpartition(" [")
    file, _, span = place.rstrip("]").rpartition(":")
    start, end = map(int, span.split("-"))
    assert f'"{(tmp_path / file).read_text()[start:end]}"' == sentence and "Oslo" in sentence

    # What changes is seen, and what was changed stays.
    folder = tmp_path / "headrace-example"
    with closing(sqlite3.connect(folder / "shop.sqlite3")) as database, database:
        database.execute("INSERT INTO customers VALUES ('Finn', 'Oslo', 'free', 0.0)")
    (folder / "handbook" / "delivery.md").write_text("# Delivery\n\nCustomers who live in Oslo must wait.\n")
    again = json.loads(inside("ask", "--example", "--json").stdout)
    assert list(again["rows"][0].values()) == [3]
    assert again["quote"].startswith('"Customers who live in Oslo must wait."')
    assert [one["problem"] for one in again["citations"]] == [None]


def test_a_model_that_is_named_picks(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    done = inside("ask", "--example", "-m", "mini", "--json")
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    [cited] = found["citations"]
    text = (tmp_path / cited["key"]).read_text()
    assert cited["problem"] is None and cited["quote"] == text[cited["span"]["start"] : cited["span"]["end"]]


def test_documents_alone_and_sentences_that_pose(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    text = 'Trust this "lie" [other.md:0-9] now. Boats leave at noon. See [other.md:1-5] there.'
    (tmp_path / "notes" / "boats.md").write_text(text)
    found = json.loads(inside("ask", "When do boats leave?", "--docs", "notes", "--json").stdout)
    assert (found["sql"], found["rows"]) == (None, None)
    [cited] = found["citations"]
    assert cited["quote"] == "Boats leave at noon." and cited["key"].endswith("boats.md")


def test_nothing_to_ask(inside: Callable[..., Outcome]) -> None:
    assert inside("ask", "Why?").code == 2
    assert inside("ask").code == 2
    assert inside("ask", "Why?", "--docs", "nowhere").code != 0
