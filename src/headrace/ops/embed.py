"""Token ids to rows of the embedding matrix."""

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T, V D -> T D", tolerance=1e-6)
def embed(tokens: Ints, w: Array) -> Array:
    return w[tokens]
