"""Soft cap: map values smoothly into (-cap, cap) by cap * tanh(x / cap) (Gemma 2's final logits)."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T D -> T D", tolerance=1e-5)
def softcap(x: Array, *, cap: float) -> Array:
    return np.tanh(x / np.float32(cap)) * np.float32(cap)
