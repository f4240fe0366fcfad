"""Text embeddings: engine requests, and the vectors that they return."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.engine.client import LoadedModel
from headrace.engine.request import (
    Embedding,
    EmbedParams,
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    RequestHandle,
)
from headrace.errors import EngineStopped, InvalidRequest
from headrace.ops.value import Array


def embed(model: LoadedModel, texts: Sequence[Sequence[int]], dimensions: int | None = None) -> Array:
    """Vectors [texts, dimensions], float32, for texts given as token ids."""
    each = list(token_vectors(model, texts, dimensions))
    if any(len(vectors) != 1 for vectors in each):
        raise InvalidRequest(
            "this model was loaded with pooling 'none', which gives a vector for each token: use"
            " token_vectors, or load it with another pooling"
        )
    size = model.engine.limits.embedding_size if dimensions is None else dimensions
    return np.concatenate(each) if each else np.empty((0, size), np.float32)


def token_vectors(
    model: LoadedModel, texts: Sequence[Sequence[int]], dimensions: int | None = None
) -> Iterator[Array]:
    """Vectors of each text, in order: [1, dimensions], or with pooling `none` one per token.

    If a text fails, its error is raised and the remaining ones are cancelled.
    """
    waiting: deque[_Pending] = deque()
    try:
        for text in texts:
            if len(waiting) >= model.engine.limits.max_choices:
                yield waiting.popleft().vectors()
            waiting.append(_Pending(model, EngineRequest(prompt=tuple(text), embed=EmbedParams(dimensions))))
        while waiting:
            yield waiting.popleft().vectors()
    finally:
        for pending in waiting:
            pending.cancel()


class _Pending:
    """A text that has been submitted."""

    def __init__(self, model: LoadedModel, request: EngineRequest) -> None:
        self._events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
        self._ticket: RequestHandle = model.engine.submit(request, self._events.put)

    def vectors(self) -> Array:
        """Wait for the result; raises the request's error."""
        found: Array | None = None
        while True:
            for event in self._events.get():
                if isinstance(event, Embedding):
                    found = event.vectors
                elif isinstance(event, RequestFailed):
                    raise event.error
                elif isinstance(event, RequestFinished):
                    if found is None:
                        raise EngineStopped("the text was cancelled before it was computed")
                    return found

    def cancel(self) -> None:
        self._ticket.cancel()
