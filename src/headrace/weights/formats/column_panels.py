"""Strips: every format packs its outputs 32 at a time, so that a packed file moves between machines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_WEIGHTS = 1 << 40  # far beyond any memory, far below where native sizes overflow
STRIP = 32  # outputs in a strip; kPanel in native/types.hpp

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def strip_count(n: int) -> int:
    return -(-n // STRIP)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def check_shape(n: int, k: int) -> None:
    if n < 1 or k < 1 or n * k > MAX_WEIGHTS:
        raise ValueError(f"a weight of shape [{n}, {k}] cannot be packed")


def to_strips(w: Floats, padded_k: int) -> Floats:
    """[n, k] → [strips, padded_k, 32], zeros where there is no weight."""
    n, k = w.shape
    padded = np.zeros((strip_count(n) * STRIP, padded_k), np.float32)
    padded[:n, :k] = w
    return np.ascontiguousarray(padded.reshape(-1, STRIP, padded_k).transpose(0, 2, 1))


def from_strips(strips: Floats, n: int) -> Floats:
    """[strips, k, 32] → [n, k]."""
    return np.ascontiguousarray(strips.transpose(0, 2, 1).reshape(-1, strips.shape[1])[:n])


def join(*parts: npt.NDArray[np.generic]) -> Bytes:
    """Per strip, the bytes of each part one after the other; each part is [strips, ...]."""
    rows = [np.ascontiguousarray(part).reshape(part.shape[0], -1).view(np.uint8) for part in parts]
    return np.concatenate(rows, axis=1).reshape(-1)
