"""Vectors of length 1."""

from __future__ import annotations

import numpy as np

from headrace.ops.value import Array

_SMALLEST_LENGTH = 1e-12  # of a vector: below it, it has no direction to keep


def unit_rows(vectors: Array) -> Array:
    """The rows [texts, size] brought to length 1; rows of zeros stay so."""
    lengths = np.sqrt(np.square(vectors).sum(-1, keepdims=True))
    return vectors / np.maximum(lengths, np.float32(_SMALLEST_LENGTH))
