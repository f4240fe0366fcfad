"""Groups of questions: as many as there are, the same on another day, with words that say what they are."""

from __future__ import annotations

import csv
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.adapt.traffic.kmeans import adjusted_information, candidates, kmeans
from headrace.adapt.traffic.tasks import counted, features, grouped, matched, salient, unit
from headrace.llm import LLM


def blobs(count: int, each: int, seed: int = 0, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Vectors around `count` centers in 32 dimensions, and whose each is."""
    random = np.random.default_rng(seed)
    centers = unit(np.random.default_rng(1).normal(size=(count, 32)).astype(np.float32))
    places = np.repeat(np.arange(count), each)
    moved = centers[places] + spread * random.normal(size=(len(places), 32)) / np.sqrt(32)
    return unit(moved).astype(np.float32), places


def test_as_many_groups_as_there_are() -> None:
    vectors, places = blobs(9, 60)
    found = grouped(vectors)
    assert len(set(found.tolist())) in (8, 9, 10) and adjusted_information(found, places) > 0.9
    assert (grouped(vectors) == found).all()


def test_no_group_is_empty_where_most_questions_are_equal() -> None:
    vectors = np.repeat(blobs(3, 2)[0], 40, axis=0)  # 240 vectors, 6 of them different
    found = grouped(vectors)
    assert sorted(set(found.tolist())) == list(range(int(found.max()) + 1))


def test_adjusted_information_is_one_for_the_same_and_zero_by_chance() -> None:
    one, other = np.array([0, 0, 1, 1, 2, 2] * 50), np.array([0, 0, 1, 2, 2, 2] * 50)
    assert adjusted_information(one, one) == pytest.approx(1.0)
    assert abs(adjusted_information(one, np.random.default_rng(0).integers(0, 3, 300))) < 0.03
    assert 0.55 < adjusted_information(one, other) < 0.75


def test_groups_keep_their_numbers_on_another_day() -> None:
    first, _ = kmeans(blobs(6, 50, seed=0)[0], 6, starts=5)
    second, _ = kmeans(blobs(6, 50, seed=9)[0], 6, seed=3, starts=5)
    numbers = matched(first, {})
    assert numbers == [1, 2, 3, 4, 5, 6]
    again = matched(second, dict(zip(numbers, first, strict=True)))
    assert sorted(again) == numbers
    assert all(float(second[at] @ first[number - 1]) > 0.9 for at, number in enumerate(again))
    strange = unit(np.random.default_rng(5).normal(size=(2, 32)).astype(np.float32))
    assert matched(strange, dict(zip(numbers, first, strict=True))) == [7, 8]


def test_candidates_grow_and_end() -> None:
    assert candidates(15, 128) == [] and candidates(40, 128) == [2, 3, 4]
    assert candidates(10**6, 128)[-1] <= 128 and len(candidates(10**6, 128)) < 25


def test_names_are_words_that_others_lack() -> None:
    words = {"a": Counter(card=9, lost=8, help=9), "b": Counter(transfer=9, failed=7, help=9)}
    assert set(counted(["<EMAIL_ADDRESS_1> has lost <PERSON_2>'s card"])) == {"lost", "card"}
    assert salient(words)["a"].startswith("card, lost") and "transfer" in salient(words)["b"]


@pytest.mark.nightly
def test_banking77_without_the_number_of_its_intents(shared_data: Path) -> None:
    """A domain that `embed` was not trained on. The published figure with the right number is 0.52."""
    file = shared_data / "intents" / "banking77" / "train.csv.xz"
    if not file.is_file():
        pytest.skip("Banking77 is not here")
    with lzma.open(file, "rt") as text:
        rows = list(csv.DictReader(text))
    labels = sorted({row["category"] for row in rows})
    wanted = np.array([labels.index(row["category"]) for row in rows])
    with LLM("embed") as llm:
        vectors = unit(llm.embed([row["text"] for row in rows]))
    found = grouped(features(vectors, [row["text"] for row in rows]))
    score = adjusted_information(found, wanted)
    print(f"{len(set(found.tolist()))} groups, adjusted mutual information {score:.3f}")
    assert score >= 0.52
