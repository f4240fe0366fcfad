"""Vectors in fewer bytes: a number in one byte, or in one bit.

The layouts are those of `sentence_transformers.quantization.quantize_embeddings`: `uint8` counts steps from
the lower end of a range, `int8` is that less 128; `ubinary` has one bit for each number, 1 where it is above
0, eight to a byte with the first in the highest bit, and `binary` is that less 128. The range is fixed, so
that vectors of different requests compare: it needs vectors of length 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.ops.value import Array

VectorType = Literal["float", "int8", "uint8", "binary", "ubinary"]
STEPS: Final = 255
_WIDTH: Final = 8.0
"""The range in standard deviations of a vector with random directions, which are 1/√size each: numbers beyond
it, which hardly any model has, become the range's end. The cosine of a vector with what its codes stand for
is above 0.999."""
_BYTES: Final[Mapping[VectorType, type[np.number[Any]]]] = {
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}


def int8_range(size: int) -> float:
    """The numbers that 8 bits stand for are in [-range, range]: 8/√size, at most 1.

    A number is `(code + 128) * 2 * range / 255 - range` of an int8 code; without the 128 of a uint8 code.
    """
    return min(1.0, _WIDTH / math.sqrt(size))


def as_type(vectors: Array, kind: VectorType) -> NDArray[Any]:
    """Vectors [texts, size] of length 1 in another type: [texts, size] of float32, int8 or uint8, or
    [texts, ceil(size / 8)] of bits, of which those beyond the size are 0."""
    if kind == "float":
        return vectors
    if kind in ("binary", "ubinary"):
        codes = np.packbits(vectors > 0, axis=-1)
    else:
        most = int8_range(vectors.shape[-1])
        steps = (vectors.astype(np.float64) + most) * (STEPS / (2 * most))
        codes = np.clip(np.rint(steps), 0, STEPS).astype(np.uint8)
    if _BYTES[kind] is np.uint8:
        return codes
    return (codes.astype(np.int16) - 128).astype(np.int8)
