"""Root-mean-square norm (Zhang and Sennrich 2019) over the last D entries, as a whole or in equal runs."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T G*D, D -> T G*D", tolerance=1e-5)
def rms_norm(x: Array, w: Array, *, eps: float, runs: int = 1) -> Array:
    """x / sqrt(mean(x^2) + eps) * w. G groups of D entries share the weight; each group is split into
    `runs` equal runs, each with its own mean.
    """
    w = w.reshape(runs, -1)
    groups = x.reshape(len(x), -1, *w.shape)
    mean_square = np.square(groups).mean(-1, keepdims=True, dtype=np.float32)
    return (groups / np.sqrt(mean_square + np.float32(eps)) * w).reshape(x.shape)
