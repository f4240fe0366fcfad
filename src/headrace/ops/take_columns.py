"""Permute columns, for weights whose inputs were sorted by the quantizer (GPTQ act-order)."""

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T K, K -> T K", tolerance=0.0)
def take_columns(x: Array, order: Ints) -> Array:
    return x[:, order]
