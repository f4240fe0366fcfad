"""Gated activation: act(gate) * up (Shazeer 2020, GLU variants)."""

from headrace.ops.act import FUNCTIONS
from headrace.ops.op import op
from headrace.ops.value import Array


@op("T D, T D -> T D", tolerance=1e-5)
def gated_act(gate: Array, up: Array, *, kind: str) -> Array:
    return FUNCTIONS[kind](gate) * up
