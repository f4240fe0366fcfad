"""Activation functions under the names that checkpoints use."""

import math
from collections.abc import Callable

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array


def _silu(x: Array) -> Array:
    # exp overflows to inf for large negative x, and x / inf = 0 is the correct limit.
    with np.errstate(over="ignore"):
        return x / (np.float32(1) + np.exp(-x))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Array) -> Array:
    return (x * 0.5 * (1 + _erf(x / math.sqrt(2)))).astype(np.float32)


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    y = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y.astype(np.float32, copy=False)


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def _log1p_relu(x: Array) -> Array:
    """The weight of a vocabulary entry in SPLADE (Formal et al. 2021)."""
    return np.log1p(_relu(x))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "tanh": np.tanh,
    "relu": _relu,
    "log1p_relu": _log1p_relu,
}


@op("T D -> T D", tolerance=1e-5)
def act(x: Array, *, kind: str) -> Array:
    return FUNCTIONS[kind](x)
