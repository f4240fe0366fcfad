"""The bodies of replies with vectors."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.inference.events import ParameterWarning


class EmbeddingObject(msgspec.Struct, frozen=True):
    """The vector of the text at `index`: numbers, or base64 of little-endian ones, float32 unless another
    type was asked for."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """The vectors of a request's texts, in their order."""

    id: str
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET
