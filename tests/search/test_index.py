"""An index in any store: rows in and out, filters, ties, generations, a crash at any point."""

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
from index_rows import SIZE, by_vector, by_words, check_whole, row, vector_of
from index_stores import Store

from headrace.errors import InvalidRequest
from headrace.search.index import IndexMeta, IndexQuery
from headrace.search.where import read_where


def test_rows_are_found_replaced_and_removed(store: Store) -> None:
    index = store.new()
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
    check_whole(store.other(), [("a", ["yellow lemons"])])
    assert index.version().generation == 3
    assert index.delete(["nothing"]) == 0
    assert index.version().generation == 3


def test_no_documents(store: Store) -> None:
    index = store.new()
    assert by_words(index, "apple") == []
    assert by_vector(index, "apple") == []
    index.upsert([])
    index.upsert([row("empty")])
    assert by_vector(index, "apple") == []
    check_whole(index, [("empty", [])])
    assert not index.maintain(force=True)


def test_filters_return_as_many_as_match(store: Store) -> None:
    index = store.new()
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
        for limit in (10, 1000) if store.qdrant else (1, 10, 100, 1000):  # its stand-in is slow
            for query in (
                IndexQuery(vector=vector_of("q"), where=where, limit=limit),
                IndexQuery(text="many", where=where, limit=limit),
                IndexQuery(text="many", vector=vector_of("q"), where=where, limit=limit),
            ):
                found = [hit.key for hit in index.query(query).hits]
                assert len(found) == min(limit, len(matching)), (condition, limit)
                assert set(found) <= {f"k{i:03}" for i in matching}


def test_names_of_attributes(store: Store) -> None:
    index = store.new()
    assert index.attributes() == index.attributes(["n"]) == []
    index.upsert([row("a", "one", region="eu", n=1), row("b", "two", **{"o d": True, "é": "x"})])
    assert index.attributes() == ["n", "o d", "region", "é"]
    assert index.attributes(["regoin", "o d", "n", "é"]) == ["o d", "n", "é"]
    assert by_words(index, "one two", where=read_where("é = 'x' AND \"o d\"")) == [("b", "two")]
    index.delete(["a"])
    assert index.attributes(["n"]) == []


def test_ties_are_in_the_order_of_keys(store: Store) -> None:
    index = store.new()
    keys = [f"{i:04}" for i in range(400)]
    shuffled = random.Random(1).sample(keys, len(keys))
    index.upsert([row(key, "the same words") for key in shuffled])
    assert [key for key, _ in by_vector(index, "the same words", 30)] == keys[:30]
    hybrid = index.query(IndexQuery(text="same", vector=vector_of("the same words"), limit=10)).hits
    assert [hit.score for hit in hybrid] == sorted((hit.score for hit in hybrid), reverse=True)


def test_hits_say_why(store: Store) -> None:
    index = store.new()
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


def test_wrong_rows_change_nothing(store: Store) -> None:
    index = store.new()
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


def test_readers_see_one_generation(store: Store) -> None:
    """While documents change together, a query sees all of a change or nothing of it."""
    index = store.new()
    index.upsert([row(f"k{i}", f"round 0 of {i}") for i in range(20)])
    failed: list[object] = []
    stop = threading.Event()

    def read() -> None:
        reader = store.other()
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
from pathlib import Path
sys.path[:0] = [sys.argv[2], str(Path(sys.argv[2]).parent)]
from index_rows import row
from index_stores import Store
index = Store(Path(sys.argv[1]), sys.argv[3], sys.argv[4]).other()
number = index.version().generation
print("ready", flush=True)
while True:
    number += 1
    index.upsert([row(f"k{i}", *(f"round {number} of {i} {j}" for j in range(3))) for i in range(8)])
    print(number, flush=True)
    if number % 3 == 0:
        index.maintain(force=True)
"""


def test_a_crash_leaves_the_old_or_the_new_generation(store: Store) -> None:
    index = store.new()
    index.upsert([row(f"k{i}", *(f"round 1 of {i} {j}" for j in range(3))) for i in range(8)])
    delays = random.Random(7)
    for _ in range(int(os.environ.get("TEST_SEARCH_CRASHES", "3"))):
        command = [
            sys.executable,
            "-c",
            WRITER,
            str(store.folder),
            str(Path(__file__).parent),
            store.address,
            store.secret,
        ]
        before = store.connections()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(delays.uniform(0.001, 0.12))
            writer.send_signal(signal.SIGKILL)
            said = writer.stdout.read().split()
        while store.connections() > before:  # what it had sent is still worked at
            time.sleep(0.01)
        found = store.other()
        generation = found.version().generation
        assert generation - int(said[-1] if said else generation) in (0, 1)
        check_whole(
            found, [(f"k{i}", [f"round {generation} of {i} {j}" for j in range(3)]) for i in range(8)]
        )


def test_what_an_index_was_made_by(store: Store) -> None:
    meta = IndexMeta(model="m", chunk_tokens=64, owner="k", details={"name": "x"})
    assert store.indexes.find_or_make("i", meta).meta() == meta
    assert store.other("i", "k").meta() == meta


def test_what_no_store_keeps_is_refused(store: Store) -> None:
    """One such attribute would make every condition on the index fail."""
    index = store.new()
    index.upsert([row("a", "one", n=1)])
    for value in (float("nan"), float("inf"), "half \ud800"):
        with pytest.raises(InvalidRequest, match=r"'x' of 'b'"):
            index.upsert([row("b", "two", x=value)])
    with pytest.raises(InvalidRequest, match="no UTF-8"):
        read_where("x = 'half \udcff'")
    assert by_words(index, "one two", where=read_where("n = 1")) == [("a", "one")]
