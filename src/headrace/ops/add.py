"""Elementwise sum: the residual stream."""

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T D, T D -> T D", tolerance=1e-6)
def add(a: Array, b: Array) -> Array:
    return a + b
