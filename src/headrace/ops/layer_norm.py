"""Layer norm (Ba et al. 2016) over the last D entries, with an optional bias."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T D, D, D? -> T D", tolerance=1e-5)
def layer_norm(x: Array, w: Array, bias: Array | None, *, eps: float) -> Array:
    centered = x - x.mean(-1, keepdims=True, dtype=np.float32)
    variance = np.square(centered).mean(-1, keepdims=True, dtype=np.float32)
    y = centered / np.sqrt(variance + np.float32(eps)) * w
    return y if bias is None else y + bias
