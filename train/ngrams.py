"""Trains a classifier of texts by hashed words and pairs of words: what is no task of `mini`, or an attack.

    python train/ngrams.py scope --data FOLDER --out src/headrace/bundled/mini/scope.safetensors

Softmax regression in NumPy, Adagrad, half a minute on one core. The same data and seed give the same file.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from data.attacks import read_attacks
from data.scope import read_scope
from numpy.typing import NDArray
from safetensors.numpy import save_file

from headrace.weights.ngram_classifier import PREFIX, NgramClassifier, buckets

BUCKETS = 1 << 14
EPOCHS, BATCH, RATE, DECAY = 6, 64, 0.3, 1e-6
Pair = tuple[str, str]
TASKS = {"injection": read_attacks, "scope": read_scope}


def fit(pairs: Sequence[Pair], seed: int) -> NgramClassifier:
    """A classifier of pairs (text, label), whose labels weigh alike."""
    labels = tuple(sorted({label for _, label in pairs}))
    counts = Counter(label for _, label in pairs)
    index = {label: at for at, label in enumerate(labels)}
    weights = np.zeros((len(labels), BUCKETS + 1))
    squares = np.full_like(weights, 1e-8)
    read = [(buckets(text, BUCKETS), index[label]) for text, label in pairs]
    shares = [len(pairs) / (len(labels) * counts[label]) for label in labels]
    random = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        order = random.permutation(len(read))
        for start in range(0, len(order), BATCH):
            batch = [read[at] for at in order[start : start + BATCH]]
            _step(weights, squares, batch, shares)
    return NgramClassifier(labels, weights[:, :-1].astype(np.float32), weights[:, -1].astype(np.float32))


def _step(
    weights: NDArray[np.float64],
    squares: NDArray[np.float64],
    batch: Sequence[tuple[list[int], int]],
    shares: Sequence[float],
) -> None:
    columns: list[int] = []
    gradients: list[NDArray[np.float64]] = []
    for at, label in batch:
        share = 1 / max(1, len(at)) ** 0.5
        logits = weights[:, -1] + weights[:, at].sum(1) * share
        found = np.exp(logits - logits.max())
        found /= found.sum()
        found[label] -= 1
        found *= shares[label] / len(batch)
        columns += [*at, BUCKETS]
        gradients += [found * share] * len(at) + [found]
    used, inverse = np.unique(columns, return_inverse=True)
    total = np.zeros((len(weights), len(used)))
    np.add.at(total.T, inverse, np.array(gradients))
    total += DECAY * weights[:, used]
    squares[:, used] += total**2
    weights[:, used] -= RATE * total / np.sqrt(squares[:, used])


def write(classifier: NgramClassifier, path: Path) -> None:
    """As `headrace.weights.ngram_classifier` reads it, in half precision."""
    rows = np.concatenate([classifier.weights, classifier.bias[:, None]], axis=1).astype(np.float16)
    tensors = {PREFIX + label: row.copy() for label, row in zip(classifier.labels, rows, strict=True)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def rates(
    classifier: NgramClassifier, pairs: Sequence[Pair], wanted: str, least: float
) -> dict[str, dict[str, float]]:
    """Of each label how many texts there are, and the share in percent in which `wanted` is found."""
    found: dict[str, list[bool]] = {}
    for text, label in pairs:
        found.setdefault(label, []).append(classifier.scores(text)[wanted] >= least)
    return {
        label: {"texts": len(several), "found": round(100 * float(np.mean(several)), 2)}
        for label, several in found.items()
    }


def main() -> None:
    """Train one and print its rates on what was held out."""
    parser = argparse.ArgumentParser(description="Trains a classifier of hashed words.")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    task = TASKS[given.task](given.data)
    classifier = fit(task.train, given.seed)
    write(classifier, given.out)
    report = {
        name: rates(classifier, pairs, task.wanted, task.least) for name, pairs in task.held_out.items()
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
