"""An index in PostgreSQL or Qdrant finds what the local one finds, with the same scores to the last bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_rows import SIZE, row, vector_of
from index_stores import STORES, Store
from msgspec.structs import replace

from headrace.search.index import IndexQuery, IndexRow
from headrace.search.where import Condition, read_filter, read_where

WORDS = (
    *("apple", "apples", "banana", "run", "running", "Über", "uber", "naïve", "snake_case", "get_user_id"),
    *(
        "the",
        "of",
        "and",
        "42",
        "4.2",
        "C++",
        "Ω",
        "word",
        "refund",
        "refunds",
        "late",
        "payment",
        "pay",
        "x",
    ),
)
ODD = (
    *("nul\x00in the middle", "one\x01two", "x" * 5000, "日本語 のテキスト", "🙂 smile"),
    "' \" % %s $1 \\ { }",
)
CONDITIONS = (
    *("n > 3", "n >= 2 AND NOT big", "name = 'b'", "name != 'b'", "name IN ('a', 'c', 3, true)"),
    *("x IS NULL", "x IS NOT NULL", "n < 2.5", "big = true", "big != true", "name < 'b'", "huge > 1e300"),
    *("huge >= 9007199254740993", "NOT (name = 'a' OR n = 1)", "n NOT IN (1, 2)", '"o d" = 1'),
)


def text(draw: random.Random) -> str:
    if draw.random() < 0.1:
        return draw.choice(ODD)
    return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 30)))


def some_rows(draw: random.Random, count: int) -> list[IndexRow]:
    found: list[IndexRow] = []
    for number in draw.sample(range(60), count):
        attributes: dict[str, Any] = {"n": draw.randrange(6), "name": draw.choice(("a", "b", "c", "A", "é"))}
        attributes |= draw.choice(
            ({}, {"big": True}, {"big": False}, {"x": "one\x01"}, {"o d": 1}, {"n": 2.5})
        )
        attributes |= draw.choice(({}, {"huge": 2**53 + 1}, {"huge": 1e308}, {"huge": -(2**63)}, {"name": 3}))
        found.append(row(f"k{number}\x00é", *(text(draw) for _ in range(draw.randrange(4))), **attributes))
    return found


def some_query(draw: random.Random) -> IndexQuery:
    where: Condition | None = read_where(draw.choice(CONDITIONS)) if draw.random() < 0.6 else None
    if draw.random() < 0.1:
        where = read_filter({"type": "eq", "key": "x", "value": "one\x01"})
    said = text(draw) if draw.random() < 0.8 else ""
    keywords = ("late payment", "apple", "snake_case", "_", "the")
    return IndexQuery(
        text=said,
        vector=vector_of(draw.choice(("q", "apple", said))) if draw.random() < 0.8 or not said else None,
        keywords=tuple(draw.sample(keywords, draw.choice((0, 0, 1, 2)))),
        where=where,
        limit=draw.choice((1, 5, 40)),
    )


@pytest.fixture(params=STORES[1:])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    found = [Store(tmp_path / "a"), request.getfixturevalue(request.param).store(tmp_path / "b")]
    yield found
    for store in found:
        store.close()


def test_both_find_the_same(both: list[Store]) -> None:
    draw, indexes = random.Random(5), [store.new() for store in both]
    hits = 0
    steps = 4 if both[1].qdrant else 8  # its stand-in is slow
    for step in range(steps):
        rows, gone = some_rows(draw, 12), [f"k{number}\x00é" for number in draw.sample(range(60), 5)]
        for index in indexes:
            index.upsert(rows)
            index.delete(gone)
            if step % 4 == 3:
                index.maintain(force=True)
                assert index.version().dead == 0
        for _ in range(12):
            query = some_query(draw)
            local, remote = [index.query(query) for index in indexes]
            assert remote == local, query
            hits += len(local.hits)
    assert hits > 35 * steps
    local, remote = indexes
    assert remote.digests() == local.digests()
    assert remote.digests("k1") == local.digests("k1")
    assert [one.key for one in remote.documents()] == [one.key for one in local.documents()]
    for key in local.digests():
        assert remote.chunks_of(key) == local.chunks_of(key)
        ours, theirs = local.vectors_of(key), remote.vectors_of(key)
        assert ours.keys() == theirs.keys()
        assert all((ours[one] == theirs[one]).all() for one in ours)


def test_near_vectors_are_in_the_local_order(both: list[Store]) -> None:
    """What a store adds up in float32 tells vectors as near as these not apart."""
    numbers, query = np.random.default_rng(3), vector_of("q")
    rows = []
    for place in range(400):
        near = query + numbers.standard_normal(SIZE) * 1e-7 * (place % 7)
        vector = (near / np.sqrt((near * near).sum())).astype(np.float32)
        rows.append(replace(row(f"k{place:03}", "same"), vectors=vector[None]))
    found = []
    for store in both:
        index = store.new("near")
        index.upsert(rows)
        found.append(index.query(IndexQuery(vector=query, limit=60)).hits)
    assert found[0] == found[1]
