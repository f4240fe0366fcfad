"""Root-mean-square norm (Zhang and Sennrich 2019) over the last D entries; G groups share the weight."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T G*D, D -> T G*D", tolerance=1e-5)
def rms_norm(x: Array, w: Array, *, eps: float) -> Array:
    groups = x.reshape(len(x), -1, len(w))
    mean_square = np.square(groups).mean(-1, keepdims=True, dtype=np.float32)
    return (groups / np.sqrt(mean_square + np.float32(eps)) * w).reshape(x.shape)
