"""Vectors of texts as one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.errors import InvalidRequest
from headrace.ops.value import Array


def pooled(vectors: Sequence[Array], dimensions: int) -> Array:
    """Vectors [texts, dimensions] of texts that have one each."""
    check_pooled(vectors)
    return np.concatenate(vectors) if vectors else np.empty((0, dimensions), np.float32)


def check_pooled(vectors: Sequence[Array]) -> None:
    """InvalidRequest where a text has a vector for each of its tokens."""
    if any(len(one) != 1 for one in vectors):
        raise InvalidRequest(
            "this model gives a vector for each token: ask for these (/embed_all, embed_tokens), or load it"
            " with another pooling than 'none'",
            param="model",
        )
