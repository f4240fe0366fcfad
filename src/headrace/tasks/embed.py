"""Vectors of texts as one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.errors import InvalidRequest
from headrace.ops.value import Array


def pooled(vectors: Sequence[Array], dimensions: int) -> Array:
    """Vectors [texts, dimensions] of texts that have one each."""
    if any(len(one) != 1 for one in vectors):
        raise InvalidRequest(
            "this model was loaded with pooling 'none', which gives a vector for each token: use"
            " embed_tokens, or load it with another pooling"
        )
    return np.concatenate(vectors) if vectors else np.empty((0, dimensions), np.float32)
