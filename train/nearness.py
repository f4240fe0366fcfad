"""Quality of embeddings: intent classification by the nearest centroid, retrieval of answers."""

from collections.abc import Callable, Sequence

import numpy as np
from data.intents import Remark

Encode = Callable[[list[str]], np.ndarray]
"""Vectors [texts, dimensions] of length 1."""


def centroid_accuracy(encode: Encode, learned: Sequence[Remark], asked: Sequence[Remark]) -> float:
    """Accuracy of classifying utterances by the nearest centroid of `learned` utterances."""
    vectors = encode([text for text, _ in learned])
    intents = sorted({intent for _, intent in learned})
    place = {intent: number for number, intent in enumerate(intents)}
    centroids = np.zeros((len(intents), vectors.shape[1]), np.float32)
    for vector, (_, intent) in zip(vectors, learned, strict=True):
        centroids[place[intent]] += vector
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    nearest = (encode([text for text, _ in asked]) @ centroids.T).argmax(1)
    return float(np.mean([intents[at] == intent for at, (_, intent) in zip(nearest, asked, strict=True)]))


def nearest_share(encode: Encode, asked: list[str], answers: list[str]) -> float:
    """The share of questions whose own answer is the nearest of all; equal answers count as one."""
    questions, found = encode(asked), encode(answers)
    nearest = (questions @ found.T).argmax(1)
    return float(np.mean([answers[at] == answer for at, answer in zip(nearest, answers, strict=True)]))
