"""Causal depthwise convolution followed by an activation, over the rows of each sequence."""

from __future__ import annotations

import numpy as np

from headrace.ops.act import FUNCTIONS
from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T C, N J*C, C I K, C?, E, B, B -> T C", tolerance=1e-5, writes=1)
def causal_conv(
    x: Array,
    state: Array,
    w: Array,
    bias: Array | None,
    query_starts: Ints,
    lengths: Ints,
    state_slots: Ints,
    *,
    kind: str,
) -> Array:
    """act(sum over k of w[:, 0, k] * x[t - K + 1 + k] + bias); `kind` names the activation (ops/act.py).

    `state` holds, in each sequence's slot, the K - 1 rows before this step, oldest first. If all keys of a
    sequence are new (`lengths` equals its rows), zeros are used instead of the slot's contents.
    """
    channels, _, taps = w.shape
    y = np.empty_like(x)
    for b, slot in enumerate(state_slots):
        rows = slice(query_starts[b], query_starts[b + 1])
        count = int(rows.stop - rows.start)
        before = state[slot].reshape(taps - 1, channels)
        if lengths[b] == count:
            before = np.zeros_like(before)
        history = np.concatenate([before, x[rows]])
        windows = np.stack([history[k : k + count] for k in range(taps)], axis=-1)
        mixed = (windows * w[:, 0]).sum(-1)
        y[rows] = FUNCTIONS[kind](mixed if bias is None else mixed + bias)
        state[slot] = history[count:].ravel()
    return y
