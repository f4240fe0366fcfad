"""Groups of vectors: k-means on the unit sphere, with as many groups as come out alike twice.

Density methods leave two thirds of a domain that the encoder was not trained on as noise (HDBSCAN on
Banking77); k-means covers all traffic. The number of groups is that for which two halves of the data, grouped
apart, agree best on how to divide the whole (Ben-Hur, Elisseeff and Guyon 2002; von Luxburg 2010).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Places = NDArray[np.intp]
ITERATIONS = 30
TRIED = 2000
"""Vectors that the number of groups is found with."""
PAIRS = 2
FLOOR = 0.02
"""Of the mean variance, added to that of each direction: few examples say little of the smallest ones."""
AS_STABLE = 0.98
"""Of the best stability: of all numbers of groups that have so much of it the largest is taken. On a domain
with many intents stability hardly changes over a wide range, and finer groups say more."""


def kmeans(vectors: Floats, count: int, seed: int = 0, starts: int = 1) -> tuple[Floats, Places]:
    """Centroids [count, size] of length 1, and the group of each of the vectors [n, size] of length 1: of
    `starts` attempts the one whose vectors are nearest to their centroids."""
    best: tuple[float, Floats, Places] | None = None
    for start in range(starts):
        random = np.random.default_rng([seed, start])
        centroids = _first(vectors, count, random)
        places = np.zeros(len(vectors), np.intp)
        for _ in range(ITERATIONS):
            near = vectors @ centroids.T
            found = near.argmax(1)
            if (found == places).all() and _:
                break
            places, centroids = found, _means(vectors, found, near, centroids)
        total = float((vectors * centroids[places]).sum())
        if best is None or total > best[0]:
            best = total, centroids, places
    assert best is not None
    return best[1], best[2]


def _first(vectors: Floats, count: int, random: np.random.Generator) -> Floats:
    """Centroids to begin with, far from one another (k-means++: Arthur and Vassilvitskii 2007)."""
    chosen = [int(random.integers(len(vectors)))]
    distance = 1 - vectors @ vectors[chosen[0]]
    for _ in range(count - 1):
        weights = np.maximum(distance, 0).astype(np.float64)
        total = weights.sum()
        place = int(random.choice(len(vectors), p=weights / total if total > 0 else None))
        chosen.append(place)
        distance = np.minimum(distance, 1 - vectors @ vectors[place])
    return vectors[chosen].copy()


def _means(vectors: Floats, places: Places, near: Floats, before: Floats) -> Floats:
    """The centroids of groups; one that is empty takes the vector that fits its own worst."""
    order = np.argsort(places, kind="stable")
    sizes = np.bincount(places, minlength=len(before))
    sums = np.zeros_like(before)
    filled = np.flatnonzero(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])[filled]
    sums[filled] = np.add.reduceat(vectors[order], starts, axis=0)
    worst = iter(np.argsort(near[np.arange(len(vectors)), places]))
    for empty in np.flatnonzero(sizes == 0):
        sums[empty] = vectors[next(worst)]
    return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)


def adjusted_information(one: Places, other: Places, seed: int = 0) -> float:
    """Adjusted mutual information of two groupings (Vinh, Epps and Bailey 2010): 1 where they are the same, 0
    where they agree as by chance. What chance gives is the mean of five random orders."""
    random = np.random.default_rng(seed)
    chance = float(np.mean([_information(one, random.permutation(other)) for _ in range(5)]))
    entropy = (_information(one, one) + _information(other, other)) / 2
    return (_information(one, other) - chance) / (entropy - chance) if entropy > chance else 0.0


def _information(one: Places, other: Places) -> float:
    width = int(other.max()) + 1
    joint = np.bincount(one * width + other, minlength=(int(one.max()) + 1) * width)
    joint = joint.reshape(-1, width) / len(one)
    expected = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    filled = joint > 0
    return float((joint[filled] * np.log(joint[filled] / expected[filled])).sum())


def candidates(count: int, most: int) -> list[int]:
    """Numbers of groups that are tried for so many vectors: each a quarter more than the last."""
    found, value = list[int](), 2.0
    while value <= min(most, count // 10):
        found.append(round(value))
        value = max(value + 1, value * 1.25)
    return found


def stability(vectors: Floats, count: int, seed: int = 0) -> float:
    """How much the groupings of two halves agree on the whole: adjusted information, over some halves."""
    random = np.random.default_rng([seed, count])
    found: list[float] = []
    for _ in range(PAIRS):
        order = random.permutation(len(vectors))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        one, other = ((vectors @ kmeans(vectors[half], count, seed)[0].T).argmax(1) for half in halves)
        found.append(adjusted_information(one, other))
    return float(np.mean(found))


def evened(vectors: Floats) -> Floats:
    """Vectors around their mean, with directions of much variance shortened by its fourth root, of length 1.

    What all texts of a task have in common says nothing of them, and the few directions in which they differ
    most would hide the others.
    """
    moved = vectors - vectors.mean(0, keepdims=True)
    few = moved[:: max(1, len(moved) // TRIED)]
    variance, directions = np.linalg.eigh(few.T @ few / len(few))
    scale = (np.maximum(variance, 0) + FLOOR * variance.mean()) ** -0.25
    found = (moved @ directions) * scale
    return (found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)).astype(np.float32)
