"""A separate linear per head: a linear with a block-diagonal matrix."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T H*K, N K -> T N", tolerance=1e-5)
def head_linear(x: Array, w: Array) -> Array:
    """Head h of y is head h of x times rows [h N/H, (h + 1) N/H) of w, for H heads; N is a multiple of H."""
    heads = x.shape[1] // w.shape[1]
    y = np.matmul(x.reshape(len(x), heads, 1, -1), w.reshape(heads, -1, w.shape[1]).transpose(0, 2, 1))
    return y.reshape(len(x), -1)
