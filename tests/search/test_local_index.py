"""An index in a folder: rows in and out, filters, ties, generations, maintenance, a crash at any point."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from index_rows import SIZE, by_vector, by_words, check_whole, new_index, row, vector_of

from headrace.errors import InvalidRequest
from headrace.search.index import IndexBusy, IndexDamaged, IndexMeta, IndexQuery
from headrace.search.local_index import LocalIndex
from headrace.search.tables import locked
from headrace.search.where import read_where


def test_rows_are_found_replaced_and_removed(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    assert index.upsert([row("a", "red apples", "green pears"), row("b", "blue plums")]) == 1
    assert by_words(index, "apple") == [("a", "red apples")]  # by their stems
    assert by_words(index, "the of and") == []
    assert by_vector(index, "blue plums", 1) == [("b", "blue plums")]
    index.upsert([row("a", "yellow lemons")])
    assert by_words(index, "apples pears") == []
    assert by_vector(index, "red apples", 9) == [] or ("a", "red apples") not in by_vector(
        index, "red apples", 9
    )
    check_whole(index, [("a", ["yellow lemons"]), ("b", ["blue plums"])])
    assert index.delete(["b", "nothing"]) == 1
    check_whole(LocalIndex(tmp_path / "i"), [("a", ["yellow lemons"])])
    assert index.version().generation == 3
    assert index.delete(["nothing"]) == 0
    assert index.version().generation == 3


def test_no_documents(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    assert by_words(index, "apple") == []
    assert by_vector(index, "apple") == []
    index.upsert([])
    index.upsert([row("empty")])
    assert by_vector(index, "apple") == []
    check_whole(index, [("empty", [])])
    assert not index.maintain(force=True)


def test_filters_return_as_many_as_match(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    rows = [
        row(f"k{i:03}", f"text number {i} of many", n=i, odd=i % 2 == 1, part=f"p{i % 7}") for i in range(300)
    ]
    index.upsert(rows)
    for condition, matching in (
        ("n = 250", [250]),
        ("part = 'p3' AND NOT odd", [i for i in range(300) if i % 7 == 3 and i % 2 == 0]),
        ("n >= 10", list(range(10, 300))),
        ("n > 1000", []),
    ):
        where = read_where(condition)
        for limit in (1, 10, 100, 1000):
            for query in (
                IndexQuery(vector=vector_of("q"), where=where, limit=limit),
                IndexQuery(text="many", where=where, limit=limit),
                IndexQuery(text="many", vector=vector_of("q"), where=where, limit=limit),
            ):
                found = [hit.key for hit in index.query(query).hits]
                assert len(found) == min(limit, len(matching)), (condition, limit)
                assert set(found) <= {f"k{i:03}" for i in matching}


def test_ties_are_in_the_order_of_keys(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    keys = [f"{i:04}" for i in range(400)]
    shuffled = random.Random(1).sample(keys, len(keys))
    index.upsert([row(key, "the same words") for key in shuffled])
    assert [key for key, _ in by_vector(index, "the same words", 30)] == keys[:30]
    hybrid = index.query(IndexQuery(text="same", vector=vector_of("the same words"), limit=10)).hits
    assert [hit.score for hit in hybrid] == sorted((hit.score for hit in hybrid), reverse=True)


def test_hits_say_why(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    index.upsert([row("a", "one two", "three four", lang="en"), row("b", "five six")])
    first = index.query(IndexQuery(text="three", vector=vector_of("five six"), limit=2)).hits
    by_text = {hit.text: hit for hit in first}
    assert by_text["three four"].bm25_rank == 1
    assert (by_text["three four"].span.start, by_text["three four"].span.end) == (8, 18)
    assert by_text["three four"].attributes == {"lang": "en"}
    assert by_text["five six"].vector_rank == 1
    assert by_text["five six"].bm25_rank is None
    assert by_text["five six"].score == pytest.approx(0.9)
    why = by_text["three four"]
    assert why.score == pytest.approx(0.1 * (why.bm25_score or 0) + 0.9 * (why.vector_score or 0))
    keyed = index.query(IndexQuery(text="one five", vector=vector_of("x"), keywords=("six",), limit=9)).hits
    assert [hit.text for hit in keyed] == ["five six"]


def test_wrong_rows_change_nothing(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    index.upsert([row("a", "one")])
    other = row("b", "two")
    wide = type(other)(
        key="c", digest=b"", spans=other.spans, texts=other.texts, vectors=np.ones((1, SIZE + 1), "f4")
    )
    for rows, words in (
        ([row("b", "x"), row("b", "y")], "twice"),
        ([row("b", "x"), wide], "made by one model"),
        ([row("", "x")], "1 to 1,024"),
        ([row("b", "x", a="v" * 5000)], "attributes"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            index.upsert(rows)
    with pytest.raises(InvalidRequest, match="use the model that made it"):
        index.query(IndexQuery(vector=np.ones(3, np.float32)))
    with pytest.raises(InvalidRequest, match="limit"):
        index.query(IndexQuery(text="x", limit=0))
    check_whole(index, [("a", ["one"])])


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


def test_readers_see_one_generation(tmp_path: Path) -> None:
    """While documents change together, a query sees all of a change or nothing of it."""
    index = new_index(tmp_path / "i")
    index.upsert([row(f"k{i}", f"round 0 of {i}") for i in range(20)])
    failed: list[object] = []
    stop = threading.Event()

    def read() -> None:
        reader = LocalIndex(tmp_path / "i")
        while not stop.is_set():
            found = reader.query(IndexQuery(text="round", vector=vector_of("x"), limit=100))
            rounds = {hit.text.split()[1] for hit in found.hits}
            if rounds != {str(found.generation - 1)} or len(found.hits) != 20:
                failed.append((found.generation, rounds, len(found.hits)))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 15):
        index.upsert([row(f"k{i}", f"round {number} of {i}") for i in range(20)])
        if number % 5 == 0:
            index.maintain(force=True)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from headrace.search.local_index import LocalIndex
from index_rows import row
index = LocalIndex(Path(sys.argv[1]))
number = index.version().generation
print("ready", flush=True)
while True:
    number += 1
    index.upsert([row(f"k{i}", *(f"round {number} of {i} {j}" for j in range(3))) for i in range(8)])
    print(number, flush=True)
    if number % 3 == 0:
        index.maintain(force=True)
"""


def test_a_crash_leaves_the_old_or_the_new_generation(tmp_path: Path) -> None:
    index = new_index(tmp_path / "i")
    index.upsert([row(f"k{i}", *(f"round 1 of {i} {j}" for j in range(3))) for i in range(8)])
    delays = random.Random(7)
    for _ in range(int(os.environ.get("TEST_SEARCH_CRASHES", "6"))):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "i"), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(delays.uniform(0.001, 0.12))
            writer.send_signal(signal.SIGKILL)
            said = writer.stdout.read().split()
        found = LocalIndex(tmp_path / "i")
        generation = found.version().generation
        assert generation - int(said[-1] if said else generation) in (0, 1)
        check_whole(
            found, [(f"k{i}", [f"round {generation} of {i} {j}" for j in range(3)]) for i in range(8)]
        )


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


def test_what_an_index_was_made_by(tmp_path: Path) -> None:
    meta = IndexMeta(model="m", chunk_tokens=64, owner="k", details={"name": "x"})
    assert LocalIndex.make(tmp_path / "i", meta).meta() == meta
