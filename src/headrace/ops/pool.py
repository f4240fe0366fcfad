"""The mean of a sequence's rows: one vector for a text."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T D, E, R -> R D", tolerance=1e-5)
def pool(x: Array, query_starts: Ints, rows: Ints) -> Array:
    """For each wanted row the mean over its sequence's rows, from the first up to itself."""
    firsts = query_starts[np.searchsorted(query_starts, rows, side="right") - 1]
    return np.stack([x[a : b + 1].mean(0, dtype=np.float32) for a, b in zip(firsts, rows, strict=True)])
