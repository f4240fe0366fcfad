"""Causal attention of each sequence's new tokens over all its keys in pages (MHA, GQA, MQA)."""

from __future__ import annotations

import numpy as np

from headrace.ops.kv_write import KvCache
from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T Q, S J, E, B, B P -> T Q", tolerance=1e-5)
def attend(
    q: Array,
    cache: KvCache,
    query_starts: Ints,
    lengths: Ints,
    block_tables: Ints,
    *,
    head_dim: int,
    page_tokens: int,
    scale: float,
    window: int,
    softcap: float,
) -> Array:
    """Softmax(q k^T * scale) v. Row i of n new rows of a sequence of `length` keys is at length - n + i.

    window 0: all earlier keys, otherwise the last `window` including its own; softcap 0: none, otherwise
    scores become softcap * tanh(score / softcap).
    """
    y = np.empty_like(q)
    for b, length in enumerate(lengths):
        rows = slice(query_starts[b], query_starts[b + 1])
        pages = block_tables[b, : -(-length // page_tokens)]
        slots = (pages[:, None] * page_tokens + np.arange(page_tokens)).ravel()[:length]
        k = cache.k[slots].reshape(length, -1, head_dim)
        v = cache.v[slots].reshape(length, -1, head_dim)
        y[rows] = _one_sequence(q[rows], k, v, head_dim, scale, window, softcap)
    return y


def _one_sequence(
    q: Array, k: Array, v: Array, head_dim: int, scale: float, window: int, softcap: float
) -> Array:
    count, length = len(q), len(k)
    queries = q.reshape(count, -1, head_dim)
    group = queries.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, k) * np.float32(scale)
    if softcap:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    position = np.arange(length - count, length)[:, None]
    key = np.arange(length)[None, :]
    seen = (key <= position) & (key > position - window if window else True)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(q.shape)
