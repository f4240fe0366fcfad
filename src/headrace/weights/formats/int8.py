"""int8: per strip 32 float32 scales, then [p / 4][32][4] bytes `weight + 128` of the rotated weights.

p is k rounded up to 32. Symmetric, one scale per output: largest magnitude / 127.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.formats.column_panels import (
    STRIP,
    Bytes,
    Floats,
    from_strips,
    join,
    strip_count,
    to_strips,
)
from headrace.weights.formats.hadamard import (
    check_integer_shape,
    rotate,
    rotate_weights,
    rotated_k,
    rotation_block,
)

TOLERANCE = 2e-2  # activations are rounded to 8 bits
SCALE_BYTES = STRIP * 4
TINY = np.float32(1e-30)  # magnitudes below it count as zero


def packed_nbytes(n: int, k: int) -> int:
    check_integer_shape(n, k)
    return strip_count(n) * (SCALE_BYTES + rotated_k(k) * STRIP)


def column_ranges(rotated: Floats) -> tuple[Floats, Floats]:
    """Largest magnitudes [strips, 32] and 127 / them (0 where there is nothing)."""
    largest = np.abs(rotated).max(axis=1)
    if not np.isfinite(largest).all():
        raise ValueError("rotating the weight overflows float32")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(largest < TINY, np.float32(0), np.float32(127) / largest)
    return largest, inverse


def pack(w: Floats) -> Bytes:
    k = w.shape[1]
    rotated = rotate_weights(to_strips(w, rotated_k(k)), rotation_block(k))
    largest, inverse = column_ranges(rotated)
    scale = np.where(largest < TINY, np.float32(0), largest / np.float32(127))
    q = (np.rint(rotated * inverse[:, None]) + np.float32(128)).astype(np.uint8)
    return join(scale, q.reshape(len(q), -1, 4, STRIP).swapaxes(2, 3))


def to_rows(packed: Bytes, n: int, k: int) -> Bytes:
    """Rows [n, bytes] as the block type R8 has them, k being a multiple of 32."""
    strips, width = packed.reshape(strip_count(n), -1), rotation_block(k)
    scale = strips[:, :SCALE_BYTES].reshape(-1, 1, 4)[:n]
    raised = strips[:, SCALE_BYTES:].reshape(len(strips), -1, STRIP, 4).swapaxes(1, 2)
    codes = (raised ^ np.uint8(128)).reshape(-1, rotated_k(k) // width, width)[:n]
    scales = np.broadcast_to(scale, (*codes.shape[:2], 4))
    return np.concatenate([scales, codes], axis=2).reshape(n, -1)


def from_rows(rows: Bytes, k: int) -> Bytes:
    """Rows of the block type R8 packed: the reverse of `to_rows`."""
    n, width = len(rows), rotation_block(k)
    padded = np.zeros((strip_count(n) * STRIP, rows.shape[1]), np.uint8)
    padded[:n] = rows
    blocks = padded.reshape(len(padded), rotated_k(k) // width, -1)
    codes = np.ascontiguousarray(blocks[:, :, 4:]).reshape(-1, STRIP, rotated_k(k) // 4, 4) ^ np.uint8(128)
    scale = np.ascontiguousarray(blocks[:, 0, :4]).reshape(len(codes), -1)
    return join(scale, codes.swapaxes(1, 2))


def unpack_integers(packed: Bytes, n: int, k: int) -> tuple[Floats, Floats]:
    """Scales [strips, 32] and integers [strips, p, 32], as float32, of the rotated weights."""
    strips = packed.reshape(strip_count(n), -1)
    scale = strips[:, :SCALE_BYTES].copy().view(np.float32)
    stored = strips[:, SCALE_BYTES:].reshape(len(strips), -1, STRIP, 4).swapaxes(2, 3)
    return scale, stored.reshape(len(strips), -1, STRIP).astype(np.float32) - np.float32(128)


def unpack(packed: Bytes, n: int, k: int) -> Floats:
    scale, integers = unpack_integers(packed, n, k)
    return rotate(from_strips(integers * scale[:, None], n), rotation_block(k))[:, :k].copy()
