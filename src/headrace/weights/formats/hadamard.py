"""The rotation of int8 and int4: blocks of inputs times the orthonormal Hadamard matrix.

After it no input stands out, so one activation scale per row and one weight scale per output are enough
(QuaRot, Ashkboos et al. 2024). The matrix (Sylvester's order) is its own inverse. Butterflies go from
distance 1 upwards in float32: the order is part of the definition, native code gives the same bits.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.formats.column_panels import Floats, check_shape, round_up
from headrace.weights.quant_types.rotated import (
    GROUP as GROUP,
)  # rotated inputs are padded to a multiple of it
from headrace.weights.quant_types.rotated import rotate as rotate

MAX_BLOCK = 128
MAX_INPUTS = 131072  # sums of 128 * 127 * k must fit int32


def check_integer_shape(n: int, k: int) -> None:
    check_shape(n, k)
    if k > MAX_INPUTS:
        raise ValueError(f"int8 and int4 take at most {MAX_INPUTS:,} inputs, not {k:,}: use bf16")


def rotated_k(k: int) -> int:
    return round_up(k, GROUP)


def rotation_block(k: int) -> int:
    """The largest power of two up to 128 that divides the padded number of inputs."""
    padded = rotated_k(k)
    return min(padded & -padded, MAX_BLOCK)


def rotate_weights(w: Floats, block: int) -> Floats:
    """[strips, inputs, 32] rotated along the inputs."""
    return np.ascontiguousarray(rotate(np.ascontiguousarray(w.swapaxes(1, 2)), block).swapaxes(1, 2))
