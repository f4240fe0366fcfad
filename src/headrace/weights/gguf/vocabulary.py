"""Typed reading of the `tokenizer.ggml.*` keys of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # token types; others: 5 unused, 6 byte


class Vocabulary(Struct, frozen=True, eq=False):
    """`tokens` by id; `types` has one of the types above for each."""

    metadata: Mapping[str, object]
    tokens: list[str]
    types: list[int]

    def flag(self, key: str, default: bool) -> bool:
        """true or false; CorruptFile for anything else."""
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise corrupt(key, value, "true or false")
        return value

    def id_of(self, key: str) -> int | None:
        """The token id that a key holds, None where it is absent; CorruptFile for an id without a token."""
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise corrupt(key, value, f"an id below {len(self.tokens):,}")
        return value


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """The tokens and their types. Raises CorruptFile."""
    tokens = strings(metadata, "tokens")
    types = numbers(metadata, "token_type", len(tokens))
    return Vocabulary(metadata, tokens, [NORMAL] * len(tokens) if types is None else [int(t) for t in types])


def strings(metadata: Mapping[str, object], key: str) -> list[str]:
    """An array of strings that must be there."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries) or isinstance(value, str):
        raise corrupt(key, entries[0], "an array of strings")
    return cast("list[str]", entries)


def numbers(metadata: Mapping[str, object], key: str, count: int) -> list[float] | None:
    """An array of `count` finite numbers, None where it is absent."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    array = np.asarray(value)
    if array.shape != (count,) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise corrupt(key, value, f"an array of {count:,} numbers")
    return cast("list[float]", array.tolist())


def corrupt(key: str, value: object, wanted: str) -> CorruptFile:
    """The error for a value that is absent (None) or not what it must be."""
    found = "is missing" if value is None else f"is {value!r:.80}"
    return CorruptFile(f"the GGUF key tokenizer.ggml.{key} {found}, {wanted} expected: fetch the file again")
