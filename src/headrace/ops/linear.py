"""Linear layer: x times the transposed weight, with an optional bias."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


# This tolerance is for float weights; quantized formats define their own (weights/formats).
@op("T K, N K, N? -> T N", tolerance=1e-5)
def linear(x: Array, w: Array, bias: Array | None) -> Array:
    y = np.matmul(x, w.T)
    return y if bias is None else y + bias
