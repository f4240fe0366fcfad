"""The selective state space recurrence of Mamba 2 (Dao and Gu 2024), token by token."""

from __future__ import annotations

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T P*H, T L, T H, N W, H, H, H, E, B, B -> T P*H", tolerance=1e-5, writes=3)
def selective_scan(
    x: Array,
    bc: Array,
    dt: Array,
    state: Array,
    a_log: Array,
    d: Array,
    dt_bias: Array,
    query_starts: Ints,
    lengths: Ints,
    state_slots: Ints,
    *,
    groups: int,
    smallest_dt: float,
    largest_dt: float,
) -> Array:
    """h = exp(dt A) h + dt x B, y = h C + D x, for each head with A = -exp(a_log) and
    dt = clip(softplus(dt + dt_bias)).

    `bc` holds B of all groups, then C of all groups, [groups, N] each; consecutive heads share a group.
    `state` holds h in each sequence's slot as [heads, N, P]. If all keys of a sequence are new, it starts
    from zeros.
    """
    tokens, heads = dt.shape
    xs = x.reshape(tokens, heads, 1, -1)
    pairs = bc.reshape(tokens, 2, groups, -1, 1).repeat(heads // groups, axis=2)
    bs, cs = pairs[:, 0], pairs[:, 1]
    steps = np.logaddexp(dt + dt_bias, np.float32(0)).clip(smallest_dt, largest_dt)[..., None, None]
    decays = np.exp(steps * -np.exp(a_log)[:, None, None])
    y = np.empty_like(xs)
    for b, slot in enumerate(state_slots):
        first, end = query_starts[b], query_starts[b + 1]
        h = state[slot].reshape(heads, bs.shape[2], xs.shape[3])
        if lengths[b] == end - first:
            h = np.zeros_like(h)
        for t in range(first, end):
            h = decays[t] * h + bs[t] * (steps[t] * xs[t])
            y[t] = (h * cs[t]).sum(1, keepdims=True) + d[:, None, None] * xs[t]
        state[slot] = h.ravel()
    return y.reshape(x.shape)
