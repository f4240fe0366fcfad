"""What the tests of packed weights pack."""

from __future__ import annotations

import numpy as np

from headrace.weights.packing.packed_weights import WeightSpec

SHAPES = {"a": (100, 96), "b": (32, 40), "c": (7, 33), "embed": (65, 64)}
WANTED = [WeightSpec(name, n, k, "f32") for name, (n, k) in SHAPES.items()]


def aligned(nbytes: int) -> np.ndarray:
    """Memory on a 64-byte boundary, as kernels want it."""
    buffer = np.full(nbytes + 64, 0xEE, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + nbytes]
