"""Typed reading of the metadata keys of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.weights.gguf.reader import corrupt_metadata


class MetadataKeys(Struct, frozen=True):
    """The keys that begin with one prefix; CorruptFile names the key and what it holds."""

    metadata: Mapping[str, object]
    prefix: str
    file: str

    def has(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.metadata

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; also one per layer, where all are equal."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray):
            per_layer = cast("list[object]", np.unique(cast("NDArray[np.generic]", value)).tolist())
            if len(per_layer) != 1:
                raise UnsupportedModel(f"{self.file} has another {key} in each layer: not supported")
            value = per_layer[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise self._corrupt(key, value, "an integer from 0 to 2^31")
        if value == 0 and default != 0:
            raise self._corrupt(key, value, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number. What went through float32 comes back as the decimal that config.json had."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
            raise self._corrupt(key, value, "a finite number")
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return float(str(single)) if float(single) == value else float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if not isinstance(value, bool):
            raise self._corrupt(key, value, "true or false")
        return value

    def flags(self, key: str, count: int) -> list[bool] | None:
        """`count` times true or false; None where the key holds no array."""
        value = self.metadata.get(f"{self.prefix}.{key}")
        if not isinstance(value, np.ndarray):
            return None
        array = cast("NDArray[np.generic]", value)
        if array.dtype != np.bool_ or array.shape != (count,):
            raise self._corrupt(key, array, f"true or false for each of {count:,} layers")
        return cast("list[bool]", array.tolist())

    def _corrupt(self, key: str, value: object, wanted: str) -> Exception:
        return corrupt_metadata(self.file, f"{self.prefix}.{key}", value, wanted)
