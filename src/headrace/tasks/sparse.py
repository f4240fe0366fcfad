"""Texts to sparse vectors: weights of vocabulary entries (SPLADE, Formal et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest
from headrace.ops.value import Array

_AT_A_TIME = 64
"""Inputs whose rows, a number for each entry of the vocabulary, are in memory together."""


class SparseVector(Struct, frozen=True, eq=False):
    """Entries above 0: token ids of the vocabulary in ascending order (int32) and their weights (float32)."""

    ids: NDArray[np.int32]
    values: Array


async def sparse(
    runner: ModelRunner,
    name: str | None,
    inputs: Sequence[str],
    call: CallContext,
    *,
    truncate: bool = False,
) -> list[SparseVector]:
    """The sparse vector of each text. Raises InvalidRequest where the model makes none,
    ContextLengthExceeded for a text that is too long unless it may be cut (`truncate`)."""
    async with runner.lease(name, call, "sparse_embed") as model:
        request = EmbeddingRequest(
            id=new_id(), model=model.name, inputs=tuple(inputs), task="sparse_embed", truncate=truncate
        )
        portions = runner.portions(request, call, _AT_A_TIME)
        return [_entries(row[0]) async for rows in portions for row in rows]


def _entries(weights: Array) -> SparseVector:
    ids = np.flatnonzero(weights > 0).astype(np.int32)
    return SparseVector(ids, weights[ids])
