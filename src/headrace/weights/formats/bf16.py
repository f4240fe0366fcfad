"""bf16: a strip is [ceil(k / 2)][32][2] bfloat16, pairs of inputs side by side, odd k padded with a zero."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.weights.formats.column_panels import (
    STRIP,
    Bytes,
    Floats,
    check_shape,
    from_strips,
    join,
    round_up,
    strip_count,
    to_strips,
)

TOLERANCE = 4e-3  # activations are rounded to 8 bits of mantissa


def packed_nbytes(n: int, k: int) -> int:
    check_shape(n, k)
    return strip_count(n) * round_up(k, 2) * STRIP * 2


def round_to_bf16(x: Floats) -> npt.NDArray[np.uint16]:
    """The upper halves of the nearest bfloat16 (ties to even); a NaN stays one."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where((bits & np.uint32(0x7FFFFFFF)) > 0x7F800000, nan, rounded).astype(np.uint16)


def widen(half: npt.NDArray[np.uint16]) -> Floats:
    """bfloat16 bits as float32."""
    return (half.astype(np.uint32) << np.uint32(16)).view(np.float32)


def pack(w: Floats) -> Bytes:
    k = round_up(w.shape[1], 2)
    half = round_to_bf16(to_strips(w, k))
    if ((half & 0x7FFF) >= 0x7F80).any():
        raise ValueError("a weight is beyond the largest bf16: use f32")
    return join(half.reshape(-1, k // 2, 2, STRIP).swapaxes(2, 3))


def unpack(packed: Bytes, n: int, k: int) -> Floats:
    pairs = widen(packed.view(np.uint16)).reshape(-1, round_up(k, 2) // 2, STRIP, 2)
    return from_strips(pairs.swapaxes(2, 3).reshape(pairs.shape[0], -1, STRIP), n)[:, :k].copy()
