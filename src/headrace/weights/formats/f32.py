"""f32: a strip is [k][32] float32."""

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
    return strip_count(n) * k * STRIP * 4


def pack(w: Floats) -> Bytes:
    return join(to_strips(w, w.shape[1]))


def unpack(packed: Bytes, n: int, k: int) -> Floats:
    return from_strips(packed.view(np.float32).reshape(-1, k, STRIP), n)
