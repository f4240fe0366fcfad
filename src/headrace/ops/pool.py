"""Pooling: one vector per text, the mean or the maximum of its tokens' vectors."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T D, E, R -> R D", tolerance=1e-5)
def pool(x: Array, query_starts: Ints, rows: Ints, *, kind: str = "mean") -> Array:
    """For each requested row, the `mean` or `max` over its sequence's rows from the first to the row
    itself."""
    firsts = query_starts[np.searchsorted(query_starts, rows, side="right") - 1]
    parts = (x[a : b + 1] for a, b in zip(firsts, rows, strict=True))
    return np.stack([part.max(0) if kind == "max" else part.mean(0, dtype=np.float32) for part in parts])
