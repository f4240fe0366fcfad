"""Vectors of texts as one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.input_purpose import InputPurpose
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, Prompt, Truncation
from headrace.ops.value import Array


class EmbedOptions(Struct, frozen=True, kw_only=True):
    """How texts are read and what is kept of their vectors; fields as those of `EmbeddingRequest`."""

    dimensions: int | None = None
    prompt_name: str | None = None
    purpose: InputPurpose | None = None
    truncate: bool | Truncation = False
    max_tokens: int | None = None
    priority: int = 0
    deadline_s: float | None = None

    def request(self, name: str | None, inputs: Sequence[Prompt]) -> EmbeddingRequest:
        """The request for the vectors of some inputs."""
        return EmbeddingRequest(
            id=new_id(),
            model=name,
            inputs=tuple(inputs),
            dimensions=self.dimensions,
            prompt_name=self.prompt_name,
            purpose=self.purpose,
            truncate=self.truncate,
            max_tokens=self.max_tokens,
            priority=self.priority,
            deadline_s=self.deadline_s,
        )


DEFAULT_OPTIONS = EmbedOptions()


async def embed_texts(
    runner: ModelRunner,
    name: str | None,
    inputs: Sequence[Prompt],
    call: CallContext,
    options: EmbedOptions = DEFAULT_OPTIONS,
) -> Array:
    """Vectors [texts, size] as the model makes them; `name` None: by the first model that makes any.

    Raises InvalidRequest where the model makes none or one for each token, ContextLengthExceeded for a text
    that is too long unless it may be cut.
    """
    rows = await runner.rows(options.request(name, inputs), call)
    return pooled(rows, 0)


def pooled(vectors: Sequence[Array], dimensions: int) -> Array:
    """Vectors [texts, dimensions] of texts that have one each."""
    check_pooled(vectors)
    return np.concatenate(vectors) if vectors else np.empty((0, dimensions), np.float32)


def check_pooled(vectors: Sequence[Array]) -> None:
    """InvalidRequest where a text has a vector for each of its tokens."""
    if any(len(one) != 1 for one in vectors):
        raise InvalidRequest(
            "this model gives a vector for each token, as with pooling 'none': ask for token vectors"
            " (embed_tokens, /embed_all), or load it with another pooling",
            param="model",
        )
