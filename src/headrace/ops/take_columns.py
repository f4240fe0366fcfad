"""Columns in another order, for weights whose inputs a quantizer sorted (GPTQ's act-order)."""

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T K, K -> T K", tolerance=0.0)
def take_columns(x: Array, order: Ints) -> Array:
    return x[:, order]
