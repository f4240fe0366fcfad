"""What a product does to its inputs before it multiplies: the definition that native code is held to.

f32 and f16 take them as they are; bf16 rounds them; int8 and int4 rotate them and round each row to int8;
grouped formats round every 32 of a row to int8, but for FP8, which takes them as they are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.weights.formats import grouped, int4, int8
from headrace.weights.formats.bf16 import round_to_bf16, widen
from headrace.weights.formats.column_panels import Bytes, Floats, from_strips
from headrace.weights.formats.hadamard import rotate, rotated_k, rotation_block
from headrace.weights.formats.int8 import TINY


def quantize_rows(x: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Rows [T, k], rotated and rounded to [T, p] int8, and their scales [T]: largest magnitude / 127.

    A row with a NaN or an infinity gets scale NaN and zeros.
    """
    k = x.shape[1]
    padded = np.zeros((len(x), rotated_k(k)), np.float32)
    padded[:, :k] = x
    with np.errstate(invalid="ignore", over="ignore"):
        rotated = rotate(padded, rotation_block(k))
        largest = np.abs(rotated).max(axis=1)
    finite = np.isfinite(largest)
    usable = finite & (largest >= TINY)
    safe = np.where(usable, largest, np.float32(1))
    inverse = np.where(usable, np.float32(127) / safe, np.float32(0))
    scale = np.where(usable, safe / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    q = np.rint(np.where(usable[:, None], rotated, np.float32(0)) * inverse[:, None])
    return q.astype(np.int8), scale.astype(np.float32)


def integer_product(format: str, x: Floats, packed: Bytes, n: int, k: int) -> Floats:
    """x [T, k] times an int8 or int4 weight, as native code computes it, bit for bit: [T, n]."""
    scale, integers = (int8 if format == "int8" else int4).unpack_integers(packed, n, k)
    q, row_scale = quantize_rows(x)
    sums = q.astype(np.int64) @ from_strips(integers, n).astype(np.int64).T
    return sums.astype(np.float32) * scale.reshape(-1)[:n] * row_scale[:, None]


def rounded_inputs(format: str, x: Floats) -> Floats:
    """x as weights of a format without rotation see it."""
    if format in grouped.TYPES and format != grouped.FLOATS:
        return grouped.rounded_inputs(x)
    return widen(round_to_bf16(x)) if format == "bf16" else x
