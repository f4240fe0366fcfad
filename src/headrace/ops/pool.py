"""Mean pooling: one vector per text."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T D, E, R -> R D", tolerance=1e-5)
def pool(x: Array, query_starts: Ints, rows: Ints) -> Array:
    """For each requested row, the mean over its sequence's rows from the first to the row itself."""
    firsts = query_starts[np.searchsorted(query_starts, rows, side="right") - 1]
    return np.stack([x[a : b + 1].mean(0, dtype=np.float32) for a, b in zip(firsts, rows, strict=True)])
