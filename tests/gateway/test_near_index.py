"""The nearest vectors are found, whatever is added and removed."""

from __future__ import annotations

import numpy as np

from headrace.gateway.near_index import NearIndex
from headrace.gateway.text_vector import text_vector


def test_the_nearest_are_those_of_a_plain_search() -> None:
    random = np.random.default_rng(5)
    centers = random.standard_normal((50, 384))
    vectors = centers[random.integers(0, 50, 3000)] + 0.5 * random.standard_normal((3000, 384))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    index = NearIndex(384)
    for number, vector in enumerate(vectors):
        index.add(str(number).encode(), vector)
    gone = random.permutation(3000)[:1000]
    for number in gone:
        index.remove(str(number).encode())
    index.remove(b"never there")
    assert len(index) == 2000
    left = np.setdiff1d(np.arange(3000), gone)
    for query in vectors[gone[:200]]:
        cosines = vectors[left] @ query
        best = sorted((one for one in cosines if one >= 0.7), reverse=True)[:5]
        found = index.search(query, 5, 0.69)
        assert found == sorted(found, key=lambda one: -one[0]) and len(found) >= len(best) > 0
        near = [vectors[int(id)] @ query for _, id in found]
        assert np.allclose(near, [one for one, _ in found], atol=0.01)
        assert np.allclose(sorted(near, reverse=True)[: len(best)], best, atol=0.01)  # one byte per number
    assert index.search(-centers[0].astype(np.float32), 5, 0.99) == []


def test_texts_that_share_words_are_near() -> None:
    one = text_vector("How do I change the PIN of my card?")
    assert one @ text_vector("how can I change my card's PIN") > 0.5
    assert abs(one @ text_vector("flights from Oslo to Rome")) < 0.3
    assert not text_vector("… !").any() and abs(np.linalg.norm(text_vector("x" * 10**6)) - 1) < 1e-5
