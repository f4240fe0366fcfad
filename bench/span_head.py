"""Time of GLiNER's head in NumPy: each span by the published formula, and factored; the LSTM before it.

Random weights in the sizes of the public checkpoints (hidden 512, 12 widths). Minima of several rounds, in
which both ways alternate. Run: python bench/span_head.py [--words 100] [--labels 10]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from headrace.ops.value import Array
from headrace.tasks.entity_finders.gliner_scores import contextual, label_vectors, sigmoid, span_scores
from headrace.weights.gliner import gliner_settings
from headrace.weights.gliner_head import GlinerHead, LstmDirection
from headrace.weights.head_tensors import AffineLayer, Mlp, SpanScorer

ROUNDS, WIDTHS = 15, 12


def random_head(hidden: int) -> GlinerHead:
    """A head with a layer of LSTM."""
    random = np.random.default_rng(0)

    def layer(inputs: int, outputs: int) -> AffineLayer:
        weight = random.standard_normal((inputs, outputs), np.float32) / np.float32(inputs**0.5)
        return AffineLayer(weight, random.standard_normal(outputs, np.float32))

    def mlp(inputs: int) -> Mlp:
        return Mlp(layer(inputs, 4 * hidden), layer(4 * hidden, hidden))

    half = hidden // 2
    one, other = (LstmDirection(layer(hidden, 4 * half), layer(half, 4 * half).weight) for _ in range(2))
    scorer = SpanScorer(start=mlp(hidden), end=mlp(hidden), out=mlp(2 * hidden))
    settings = gliner_settings({"hidden_size": hidden, "max_width": WIDTHS})
    return GlinerHead(settings, None, ((one, other),), scorer, mlp(hidden))


def published(scorer: SpanScorer, words: Array, labels: Array) -> Array:
    """The formula of the package `gliner`: an MLP on every span."""
    starts, ends = scorer.start(words), scorer.end(words)
    first = np.repeat(np.arange(len(words)), WIDTHS)
    last = np.minimum(first + np.tile(np.arange(WIDTHS), len(words)), len(words) - 1)
    spans = scorer.out(np.maximum(np.concatenate([starts[first], ends[last]], axis=1), 0))
    return sigmoid(spans @ labels.T).reshape(len(words), WIDTHS, -1)


def milliseconds(*ways: Callable[[], object]) -> list[float]:
    """The least time of each."""
    least = [float("inf")] * len(ways)
    for _ in range(ROUNDS):
        for index, way in enumerate(ways):
            begun_s = time.perf_counter()
            way()
            least[index] = min(least[index], (time.perf_counter() - begun_s) * 1e3)
    return least


def main() -> None:
    """Print the times and the largest difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=512)
    given = parser.parse_args()
    head, random = random_head(given.hidden), np.random.default_rng(1)
    assert isinstance(head.scorer, SpanScorer)
    scorer = head.scorer
    words = random.standard_normal((given.words, given.hidden), np.float32)
    labels = label_vectors(head, random.standard_normal((1, given.labels, given.hidden), np.float32))
    labels *= np.float32(0.05)
    [factored] = span_scores(scorer, [words], labels, WIDTHS)
    plain = published(scorer, words, labels[0])
    difference = max(
        float(np.abs(factored[width, : given.words - width] - plain[: given.words - width, width]).max())
        for width in range(WIDTHS)
    )
    times = milliseconds(
        lambda: published(scorer, words, labels[0]),
        lambda: list(span_scores(scorer, [words], labels, WIDTHS)),
        lambda: contextual(head, [words]),
        lambda: contextual(head, [words] * 8),
    )
    print(f"{given.words} words, {given.labels} labels, hidden {given.hidden}")
    print(f"published {times[0]:.1f} ms, factored {times[1]:.1f} ms: {times[0] / times[1]:.1f} x")
    print(f"LSTM of one text {times[2]:.1f} ms, of 8 texts {times[3]:.1f} ms; difference {difference:.1e}")


if __name__ == "__main__":
    main()
