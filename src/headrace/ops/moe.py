"""Mixture of experts (Shazeer et al. 2017): gated MLPs; each row uses the experts that `route` chose."""

import numpy as np

from headrace.ops.gated_act import gated_act
from headrace.ops.op import op
from headrace.ops.value import Array


@op("T K, T E, E*F K, E*F K, E*K F, E*F?, E*F?, E*K? -> T K", tolerance=1e-5)
def moe(
    x: Array,
    gates: Array,
    gate: Array,
    up: Array,
    down: Array,
    gate_bias: Array | None,
    up_bias: Array | None,
    down_bias: Array | None,
    *,
    kind: str,
) -> Array:
    """The sum of gates[:, e] * down_e(act(gate_e(x), up_e(x))) over the experts e with a nonzero gate.

    The experts' matrices and biases are concatenated along their rows. `kind` is a kind of gated_act, or
    `swiglu_clamped`.
    """
    y = np.zeros_like(x)
    experts = gates.shape[1]
    for e in np.flatnonzero(gates.any(0)):
        rows = np.flatnonzero(gates[:, e])
        pre_gate = _product(x[rows], gate, gate_bias, e, experts)
        pre_up = _product(x[rows], up, up_bias, e, experts)
        h = (
            _clamped(pre_gate, pre_up)
            if kind == "swiglu_clamped"
            else gated_act.body(pre_gate, pre_up, kind=kind)
        )
        y[rows] += gates[rows, e, None] * _product(h, down, down_bias, e, experts)
    return y


def _product(x: Array, stacked: Array, bias: Array | None, e: np.intp, experts: int) -> Array:
    y = np.matmul(x, stacked.reshape(experts, -1, x.shape[1])[e].T)
    return y if bias is None else y + bias.reshape(experts, -1)[e]


def _clamped(gate: Array, up: Array) -> Array:
    """gpt-oss: SiLU with slope 1.702; gate clamped to at most 7, up to [-7, 7]; up shifted by 1."""
    gate = np.minimum(gate, np.float32(7))
    up = np.clip(up, np.float32(-7), np.float32(7))
    with np.errstate(over="ignore"):
        return (up + np.float32(1)) * gate / (np.float32(1) + np.exp(np.float32(-1.702) * gate))
