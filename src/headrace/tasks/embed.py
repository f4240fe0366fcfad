"""Texts to vectors, by a handler with an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.errors import EngineStopped, InvalidRequest
from headrace.inference.handler import Handler, open_stream
from headrace.inference.keywords import PromptLike, embedding_request, new_call
from headrace.inference.result import collect
from headrace.ops.value import Array


async def token_vectors(
    handler: Handler,
    texts: Sequence[PromptLike],
    dimensions: int | None,
    *,
    at_a_time: int,
    prompt_name: str | None = None,
) -> list[Array]:
    """Of each text its vectors [1, dimensions], or with pooling `none` one for each token.

    Up to `at_a_time` texts are submitted together. If one fails its error is raised and the others are
    cancelled.
    """
    found: list[Array] = []
    for start in range(0, len(texts), at_a_time):
        request = embedding_request(texts[start : start + at_a_time], dimensions, prompt_name)
        result = await collect(await open_stream(handler, request, new_call()))
        for one in result.prompts:
            if one.embedding is None:
                raise EngineStopped("the text was cancelled before it was computed")
            found.append(one.embedding.vectors)
    return found


def pooled(vectors: Sequence[Array], dimensions: int) -> Array:
    """Vectors [texts, dimensions] of texts that have one each."""
    if any(len(one) != 1 for one in vectors):
        raise InvalidRequest(
            "this model was loaded with pooling 'none', which gives a vector for each token: use"
            " embed_tokens, or load it with another pooling"
        )
    return np.concatenate(vectors) if vectors else np.empty((0, dimensions), np.float32)
