"""f16: a strip is [k][32] IEEE half floats; activations stay float32."""

from __future__ import annotations

import numpy as np

from headrace.weights.formats.column_panels import (
    STRIP,
    Bytes,
    Floats,
    check_shape,
    from_strips,
    join,
    strip_count,
    to_strips,
)

TOLERANCE = 2e-6


def packed_nbytes(n: int, k: int) -> int:
    check_shape(n, k)
    return strip_count(n) * k * STRIP * 2


def pack(w: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        half = to_strips(w, w.shape[1]).astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError("a weight is beyond 65504, the largest f16: use bf16 or f32")
    return join(half)


def unpack(packed: Bytes, n: int, k: int) -> Floats:
    return from_strips(packed.view(np.float16).reshape(-1, k, STRIP).astype(np.float32), n)
