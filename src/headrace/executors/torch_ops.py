"""Every op as a torch function, by name. The definitions are in ops/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from headrace.ops.value import Ints

# PyTorch is optional, so its types are unknown if it is not installed.
Torch = Any
Tensor = Any


class TorchKvCache(Struct, frozen=True, eq=False):
    """Keys and values of one layer on the device, each [slots, kv_heads * head_dim]."""

    k: Tensor
    v: Tensor


def _embed(torch: Torch, tokens: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.embedding(tokens, w)


def _linear(torch: Torch, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(x, w, bias)


def _rms_norm(torch: Torch, x: Tensor, w: Tensor, *, eps: float, runs: int = 1) -> Tensor:
    w = w.view(runs, -1)
    groups = x.float().view(len(x), -1, *w.shape)
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    return (normed * w.float()).view(x.shape).to(x.dtype)


def _layer_norm(torch: Torch, x: Tensor, w: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    bias = None if bias is None else bias.float()
    return torch.nn.functional.layer_norm(x.float(), w.shape, w.float(), bias, eps).to(x.dtype)


def _rope(
    torch: Torch, x: Tensor, positions: Tensor, inv_freq: Tensor, *, head_dim: int, scale: float
) -> Tensor:
    angles = positions[:, None, None].float() * inv_freq
    cos, sin = angles.cos() * scale, angles.sin() * scale
    heads, half = x.float().view(len(x), -1, head_dim), len(inv_freq)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    rotated = (first * cos - second * sin, second * cos + first * sin, heads[..., 2 * half :])
    return torch.cat(rotated, dim=-1).view(x.shape).to(x.dtype)


def _head_linear(torch: Torch, x: Tensor, w: Tensor) -> Tensor:
    heads = x.shape[1] // w.shape[1]
    return torch.einsum("thk,hnk->thn", x.unflatten(1, (heads, -1)), w.unflatten(0, (heads, -1))).flatten(1)


def _join(torch: Torch, a: Tensor, b: Tensor, *, heads: int) -> Tensor:
    return torch.cat([part.unflatten(1, (heads, -1)) for part in (a, b)], dim=-1).flatten(1)


def _kv_write(torch: Torch, k: Tensor, v: Tensor | None, slots: Tensor, cache: TorchKvCache) -> None:
    cache.k[slots] = k
    if v is not None:
        cache.v[slots] = v


def _attend(
    torch: Torch,
    q: Tensor,
    cache: TorchKvCache,
    query_starts: Ints,
    lengths: Ints,
    block_tables: Tensor,
    sinks: Tensor | None,
    bias_q: Tensor | None = None,
    bias_k: Tensor | None = None,
    bias: Tensor | None = None,
    bucket_of: Tensor | None = None,
    *,
    head_dim: int,
    value_dim: int,
    page_tokens: int,
    scale: float,
    window: int,
    softcap: float,
    ahead: int = 0,
    buckets: int = 0,
) -> Tensor:
    y = q.new_empty(len(q), q.shape[1] // head_dim * value_dim)
    offsets = torch.arange(page_tokens, device=q.device)
    for b, length in enumerate(lengths.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        pages = block_tables[b, : -(-length // page_tokens)]
        slots = (pages[:, None] * page_tokens + offsets).flatten()[:length]
        v = cache.v if cache.v.shape[1] else cache.k
        # [heads, rows, head_dim], the layout of torch's attention
        queries, keys, values = (
            part.unflatten(1, (-1, head_dim)).transpose(0, 1) for part in (q[rows], cache.k[slots], v[slots])
        )
        seen = _seen(torch, queries.shape[1], length, window, ahead, q.device)
        shift: Tensor | None = None
        if bucket_of is not None:
            of_q, of_k = (
                None if x is None else x[rows].unflatten(1, (-1, buckets)) for x in (bias_q, bias_k)
            )
            shift = _relative_bias(torch, queries, length, of_q, of_k, bias, bucket_of.long())
        mixed = _mix(torch, queries, keys, values[..., :value_dim], seen, sinks, scale, softcap, shift)
        y[rows] = mixed.transpose(0, 1).flatten(1)
    return y


def _relative_bias(
    torch: Torch,
    q: Tensor,
    length: int,
    of_q: Tensor | None,
    of_k: Tensor | None,
    of_head: Tensor | None,
    bucket_of: Tensor,
) -> Tensor:
    """What is added to scores [heads, rows, length]; see ops/attend.py."""
    count, reach = q.shape[1], len(bucket_of) // 2
    key = torch.arange(length, device=q.device)
    distance = torch.arange(length - count, length, device=q.device)[:, None] - key
    bucket = bucket_of[distance.clamp(-reach, reach) + reach]
    shift = torch.zeros(1, count, length, device=q.device)
    if of_q is not None:
        shift = shift + of_q[torch.arange(count, device=q.device)[:, None], :, bucket].permute(2, 0, 1)
    if of_k is not None:
        shift = shift + of_k[key, :, bucket].permute(2, 0, 1)
    return shift if of_head is None else shift + of_head.view(-1, len(q))[bucket].permute(2, 0, 1)


def _seen(torch: Torch, count: int, length: int, window: int, ahead: int, device: Any) -> Tensor:
    """Mask [count, length]: which of `length` keys each of the last `count` positions attends to."""
    position = torch.arange(count, device=device)[:, None] + max(length - count, 0)
    key = torch.arange(length, device=device)
    seen = key <= position + ahead
    return seen & (key > position - window) if window else seen


def _mix(
    torch: Torch,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
    shift: Tensor | None = None,
) -> Tensor:
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    if not softcap and sinks is None and shift is None:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    scores = (q @ k.mT).float() * scale
    scores = scores if shift is None else scores + shift
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -np.inf)
    if sinks is not None:  # the sink, a key without a value, comes last and is dropped after the softmax
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)], dim=-1)
    return torch.softmax(scores, dim=-1)[..., : k.shape[1]].to(v.dtype) @ v


def _causal_conv(
    torch: Torch,
    x: Tensor,
    state: Tensor,
    w: Tensor,
    bias: Tensor | None,
    query_starts: Ints,
    lengths: Ints,
    state_slots: Ints,
    *,
    kind: str,
) -> Tensor:
    y = torch.empty_like(x)
    channels, _, taps = w.shape
    for b, slot in enumerate(state_slots.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        count = rows.stop - rows.start
        before = state[slot].view(taps - 1, channels)
        if lengths[b] == count:
            before = torch.zeros_like(before)
        history = torch.cat([before.to(x.dtype), x[rows]])
        mixed = torch.nn.functional.conv1d(history.T, w, bias, groups=channels).T
        y[rows] = _act(torch, mixed, kind=kind)
        state[slot] = history[count:].flatten()
    return y


def _selective_scan(
    torch: Torch,
    x: Tensor,
    bc: Tensor,
    dt: Tensor,
    state: Tensor,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    query_starts: Ints,
    lengths: Ints,
    state_slots: Ints,
    *,
    groups: int,
    smallest_dt: float,
    largest_dt: float,
) -> Tensor:
    tokens, heads = dt.shape
    xs = x.float().view(tokens, heads, 1, -1)
    halves = bc.float().view(tokens, 2, groups, -1).repeat_interleave(heads // groups, 2)[..., None]
    bs, cs = halves.unbind(1)
    softplus = torch.nn.functional.softplus(dt.float() + dt_bias.float())
    steps = softplus.clamp(smallest_dt, largest_dt)[..., None, None]
    decays = torch.exp(steps * -torch.exp(a_log.float())[:, None, None])
    y = torch.empty_like(xs)
    for b, slot in enumerate(state_slots.tolist()):
        first, end = int(query_starts[b]), int(query_starts[b + 1])
        h = state[slot].view(heads, bs.shape[2], xs.shape[3])
        if lengths[b] == end - first:
            h = torch.zeros_like(h)
        for t in range(first, end):
            h = decays[t] * h + bs[t] * (steps[t] * xs[t])
            y[t] = (h * cs[t]).sum(1, keepdim=True) + d.float()[:, None, None] * xs[t]
        state[slot] = h.flatten()
    return y.view(x.shape).to(x.dtype)


def _act(torch: Torch, x: Tensor, *, kind: str) -> Tensor:
    functional = torch.nn.functional
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "tanh": torch.tanh,
        "relu": functional.relu,
        "log1p_relu": lambda x: torch.log1p(functional.relu(x)),
    }
    return calls[kind](x)


def _gated_act(torch: Torch, gate: Tensor, up: Tensor, *, kind: str) -> Tensor:
    return _act(torch, gate, kind=kind) * up


def _route(
    torch: Torch,
    logits: Tensor,
    bias: Tensor | None,
    *,
    kind: str,
    top_k: int,
    groups: int,
    top_groups: int,
    normalize: int,
    scale: float,
) -> Tensor:
    logits = logits.float()
    shares = torch.sigmoid(logits) if kind == "sigmoid" else torch.softmax(logits, dim=-1)
    choice = shares if kind == "sigmoid" else logits
    choice = choice if bias is None else choice + bias
    if groups > 1:
        grouped = choice.unflatten(1, (groups, -1))
        scores = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1)
        outside = ~_best(torch, scores, top_groups)
        choice = grouped.masked_fill(outside[..., None], -np.inf).flatten(1)
    gates = shares.masked_fill(~_best(torch, choice, top_k), 0)
    if normalize:
        gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)
    return gates * scale


def _best(torch: Torch, values: Tensor, count: int) -> Tensor:
    """True for the `count` largest values of each row; ties go to the lowest index."""
    order = values.argsort(dim=-1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(values, dtype=torch.bool).scatter(1, order, True)


def _moe(
    torch: Torch,
    x: Tensor,
    gates: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    *biases: Tensor | None,
    kind: str,
) -> Tensor:
    stacks = [
        None if stack is None else stack.unflatten(0, (gates.shape[1], -1))
        for stack in (gate, up, down, *biases)
    ]
    linear, y = torch.nn.functional.linear, torch.zeros_like(x)
    for e in gates.any(0).nonzero().flatten().tolist():
        w_gate, w_up, w_down, *b = (None if stack is None else stack[e] for stack in stacks)
        rows = gates[:, e].nonzero().flatten()
        pre_gate, pre_up = linear(x[rows], w_gate, b[0]), linear(x[rows], w_up, b[1])
        if kind == "swiglu_clamped":
            clamped = pre_gate.clamp(max=7)
            h = (pre_up.clamp(-7, 7) + 1) * clamped * torch.sigmoid(1.702 * clamped)
        else:
            h = _gated_act(torch, pre_gate, pre_up, kind=kind)
        y[rows] += (gates[rows, e, None] * linear(h, w_down, b[2])).to(x.dtype)
    return y


def _add(torch: Torch, a: Tensor, b: Tensor) -> Tensor:
    return a + b


def _scale(torch: Torch, x: Tensor, *, by: float) -> Tensor:
    return x * by


def _softcap(torch: Torch, x: Tensor, *, cap: float) -> Tensor:
    return torch.tanh(x / cap) * cap


def _take_columns(torch: Torch, x: Tensor, order: Tensor) -> Tensor:
    return x[:, order.long()]


def _gather(torch: Torch, x: Tensor, rows: Tensor) -> Tensor:
    return x[rows]


def _pool(torch: Torch, x: Tensor, query_starts: Ints, rows: Tensor, *, kind: str = "mean") -> Tensor:
    lasts = rows.tolist()
    firsts = query_starts[np.searchsorted(query_starts, lasts, side="right") - 1].tolist()
    parts = [x[a : b + 1].float() for a, b in zip(firsts, lasts, strict=True)]
    pooled = [part.amax(0) if kind == "max" else part.mean(0) for part in parts]
    return torch.stack(pooled).to(x.dtype)


OPERATIONS: dict[str, Callable[..., Tensor | None]] = {
    "embed": _embed,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "head_linear": _head_linear,
    "join": _join,
    "kv_write": _kv_write,
    "attend": _attend,
    "causal_conv": _causal_conv,
    "selective_scan": _selective_scan,
    "act": _act,
    "gated_act": _gated_act,
    "route": _route,
    "moe": _moe,
    "add": _add,
    "scale": _scale,
    "softcap": _softcap,
    "gather": _gather,
    "pool": _pool,
    "take_columns": _take_columns,
}
