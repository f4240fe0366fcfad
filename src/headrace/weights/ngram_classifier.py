"""Classifiers of texts that need no model: hashed words and pairs of words with weights for each label."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile
from headrace.ops.value import Array
from headrace.weights.safetensors.reader import SafetensorsFile

MAX_WORDS = 256
"""What a text has beyond them is not read."""
MAX_CHARACTERS = 64 * MAX_WORDS
PREFIX = "weights."
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


class NgramClassifier(Struct, frozen=True, eq=False):
    """`weights` [labels, buckets] and `bias` [labels]."""

    labels: tuple[str, ...]
    weights: Array
    bias: Array

    def scores(self, text: str) -> dict[str, float]:
        """The probability of each label."""
        at = buckets(text, self.weights.shape[1])
        logits = self.bias + self.weights[:, at].sum(1) / max(1, len(at)) ** 0.5
        shares = np.exp(logits - logits.max())
        return dict(zip(self.labels, (shares / shares.sum()).tolist(), strict=True))


def buckets(text: str, count: int) -> list[int]:
    """Those of a text's words, of pairs of them, and of its first words."""
    words = [word[:64] for word in _WORD.findall(text[:MAX_CHARACTERS].lower())[:MAX_WORDS]]
    pairs = [f"{one} {other}" for one, other in pairwise(words)]
    first = [f"^{' '.join(words[:size])}" for size in (1, 2) if len(words) >= size]
    return sorted({zlib.crc32(one.encode("utf-8", "replace")) % count for one in [*words, *pairs, *first]})


@lru_cache(16)
def read_ngram_classifier(path: Path) -> NgramClassifier:
    """A file that `train/ngrams.py` wrote: a tensor `weights.LABEL` of buckets and the bias for each label.
    CorruptFile where they do not fit each other."""
    with SafetensorsFile(path) as file:
        names = sorted(name for name in file.tensors if name.startswith(PREFIX))
        rows = [file.float32(file.tensors[name]) for name in names]
    if len(rows) < 2 or any(row.ndim != 1 or len(row) != len(rows[0]) or len(row) < 2 for row in rows):
        raise CorruptFile(
            f"{path.name} is no classifier: it has {len(rows)} rows {PREFIX}LABEL, of one length"
        )
    weights = np.stack(rows)
    if not np.isfinite(weights).all():
        raise CorruptFile(f"{path.name} has numbers that are not finite")
    labels = tuple(name.removeprefix(PREFIX) for name in names)
    return NgramClassifier(labels, weights[:, :-1], weights[:, -1])
