"""The scan finds what float32 over all vectors finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.search.vectors import VectorFiles, unit


def unit_rows(seed: int, count: int, size: int, spread: float = 1.0) -> np.ndarray:
    """Random directions; with a small `spread` all are close to each other."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((1, size)) + spread * random.standard_normal((count, size))
    return unit(rows.astype(np.float32), ["x"] * count)


def by_brute_force(rows: np.ndarray, query: np.ndarray, allowed: np.ndarray) -> list[tuple[float, int]]:
    scores = (rows.astype(np.float64) * query.astype(np.float64)).sum(axis=1).astype(np.float32)
    return sorted((-float(scores[i]), int(i)) for i in np.flatnonzero(allowed))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    size=st.sampled_from([1, 3, 31, 32, 33, 96, 384]),
    spread=st.sampled_from([1.0, 0.05, 0.0]),
    share=st.sampled_from([None, 0.9, 0.3, 0.01, 0.0]),
    limit=st.integers(1, 40),
)
def test_the_same_as_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    counts: list[int],
    size: int,
    spread: float,
    share: float | None,
    limit: int,
) -> None:
    rows = unit_rows(seed, sum(counts), size, spread)
    files, at, error = VectorFiles(tmp_path_factory.mktemp("v"), 0, size), 0, 0.0
    for count in counts:  # in portions that end within a panel
        error = max(error, files.append(at, rows[at : at + count]))
        at += count
    random = np.random.default_rng(seed + 1)
    allowed = None if share is None else random.random(at) < share
    query = unit_rows(seed + 2, 1, size)[0]
    found = files.nearest(query, at, allowed, limit, error)
    expected = by_brute_force(rows, query, np.ones(at, bool) if allowed is None else allowed)
    told = list(zip((-found.scores).tolist(), found.ids.tolist(), strict=True))
    assert told[:limit] == expected[:limit]
    assert told == [one for one in expected if len(expected) < limit or one[0] <= expected[limit - 1][0]]


def test_rows_that_are_there_keep_their_bytes(tmp_path: Path) -> None:
    rows = unit_rows(1, 100, 48)
    files = VectorFiles(tmp_path, 0, 48)
    files.append(0, rows[:37])
    before = files.nearest(rows[5], 37, None, 37, 1.0)
    files.append(37, rows[37:])
    again = files.nearest(rows[5], 37, None, 37, 1.0)
    assert before.ids.tolist() == again.ids.tolist()
    assert before.scores.tobytes() == again.scores.tobytes()
    assert VectorFiles(tmp_path, 0, 48).rows(np.arange(100), 100).tobytes() == rows.tobytes()


@pytest.mark.parametrize(("number", "words"), [(0.0, "is zero"), (np.nan, "NaN"), (np.inf, "infinity")])
def test_vectors_without_a_direction(number: float, words: str) -> None:
    vectors = np.ones((3, 8), np.float32)
    vectors[1] = number
    with pytest.raises(InvalidRequest, match=f"vector of second .*{words}"):
        unit(vectors, ["first", "second", "third"])
