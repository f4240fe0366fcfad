"""Select the rows that logits are computed for."""

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T D, R -> R D", tolerance=0.0)
def gather(x: Array, rows: Ints) -> Array:
    return x[rows]
