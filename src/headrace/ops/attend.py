"""Attention of new tokens over the paged keys of their sequences, causal or bidirectional (MHA, GQA, MLA)."""

from __future__ import annotations

import numpy as np

from headrace.ops.kv_write import KvCache
from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T H*head_dim, S G*head_dim V, E, B, B P, H? -> T H*value_dim", tolerance=1e-5)
def attend(
    q: Array,
    cache: KvCache,
    query_starts: Ints,
    lengths: Ints,
    block_tables: Ints,
    sinks: Array | None,
    *,
    head_dim: int,
    value_dim: int,
    page_tokens: int,
    scale: float,
    window: int,
    softcap: float,
    ahead: int = 0,
) -> Array:
    """softmax(q k^T * scale) v. Row i of n new rows, in a sequence of `length` keys, is at position length
    - n + i. Of an encoder's texts the last rows may have no key (`length` < n): row i is at position i then.

    `window` 0: all earlier keys; otherwise the last `window` keys including the token's own. `ahead`: also
    the next `ahead` keys, which this step must have written. `softcap` 0: none; otherwise scores become
    softcap * tanh(score / softcap). `sinks`: one extra score per head, for a key without a value (gpt_oss).
    `value_dim` is `head_dim`, or smaller if the cache stores no values: a value is then the first entries
    of its key, as in the absorbed form of multi-head latent attention (DeepSeek-V2, 2024, section 2.1.2).
    """
    y = np.empty((len(q), q.shape[1] // head_dim * value_dim), np.float32)
    for b, length in enumerate(lengths):
        rows = slice(query_starts[b], query_starts[b + 1])
        pages = block_tables[b, : -(-length // page_tokens)]
        slots = (pages[:, None] * page_tokens + np.arange(page_tokens)).ravel()[:length]
        k = cache.k[slots].reshape(length, -1, head_dim)
        v = cache.v[slots].reshape(k.shape) if cache.v.shape[1] else k[..., :value_dim]
        y[rows] = _one_sequence(q[rows], k, v, sinks, scale, window, softcap, ahead)
    return y


def _one_sequence(
    q: Array,
    k: Array,
    v: Array,
    sinks: Array | None,
    scale: float,
    window: int,
    softcap: float,
    ahead: int,
) -> Array:
    count, length = len(q), len(k)
    queries = q.reshape(count, -1, k.shape[2])
    group = queries.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, k) * np.float32(scale)
    if softcap:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    position = np.arange(count)[:, None] + max(length - count, 0)
    key = np.arange(length)[None, :]
    seen = (key <= position + ahead) & (key > position - window if window else True)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    return np.einsum("hqk,khd->qhd", weights / total, v).reshape(count, -1)
