"""Attention of new tokens over the paged keys of their sequences, causal or bidirectional (MHA, GQA, MLA)."""

from __future__ import annotations

import numpy as np

from headrace.ops.kv_write import KvCache
from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op(
    "T H*head_dim, S G*head_dim V, E, B, B P, H?, T H*buckets?, T H*buckets?, buckets*H?, D?"
    " -> T H*value_dim",
    tolerance=1e-5,
)
def attend(
    q: Array,
    cache: KvCache,
    query_starts: Ints,
    lengths: Ints,
    block_tables: Ints,
    sinks: Array | None,
    bias_q: Array | None = None,
    bias_k: Array | None = None,
    bias: Array | None = None,
    bucket_of: Ints | None = None,
    *,
    head_dim: int,
    value_dim: int,
    page_tokens: int,
    scale: float,
    window: int,
    softcap: float,
    ahead: int = 0,
    buckets: int = 0,
) -> Array:
    """softmax(q k^T * scale) v. Row i of n new rows, in a sequence of `length` keys, is at position length
    - n + i. Of an encoder's texts the last rows may have no key (`length` < n): row i is at position i then.

    `window` 0: all earlier keys; otherwise the last `window` keys including the token's own. `ahead`: also
    the next `ahead` keys, which this step must have written. `softcap` 0: none; otherwise scores become
    softcap * tanh(score / softcap). `sinks`: one extra score per head, for a key without a value (gpt_oss).
    `value_dim` is `head_dim`, or smaller if the cache stores no values: a value is then the first entries
    of its key, as in the absorbed form of multi-head latent attention (DeepSeek-V2, 2024, section 2.1.2).

    Relative attention: with b = bucket_of[i - j + reach], for distances from -reach to reach (farther ones
    are as far), score(i, j) += bias_q[i, h, b] + bias_k[j, h, b] + bias[b, h]: of the query and of the key
    (DeBERTa; He et al. 2021, section 3.1) and of the head (T5, MPNet, ALiBi). With `bias_k`, all keys of a
    sequence must be rows of this step.
    """
    if bucket_of is not None:
        bias_q, bias_k = (None if x is None else x.reshape(len(q), -1, buckets) for x in (bias_q, bias_k))
        bias = None if bias is None else bias.reshape(buckets, -1)
    y = np.empty((len(q), q.shape[1] // head_dim * value_dim), np.float32)
    for b, length in enumerate(lengths):
        rows = slice(query_starts[b], query_starts[b + 1])
        pages = block_tables[b, : -(-length // page_tokens)]
        slots = (pages[:, None] * page_tokens + np.arange(page_tokens)).ravel()[:length]
        k = cache.k[slots].reshape(length, -1, head_dim)
        v = cache.v[slots].reshape(k.shape) if cache.v.shape[1] else k[..., :value_dim]
        shift = np.float32(0)
        if bucket_of is not None:
            of_q, of_k = (None if x is None else x[rows] for x in (bias_q, bias_k))
            shift = relative_bias(len(q[rows]), int(length), of_q, of_k, bias, bucket_of)
        y[rows] = _one_sequence(q[rows], k, v, sinks, scale, window, softcap, ahead, shift)
    return y


def relative_bias(
    count: int, length: int, of_q: Array | None, of_k: Array | None, of_head: Array | None, bucket_of: Ints
) -> Array:
    """What is added to the scores [H, count, length] of a sequence's last `count` tokens."""
    reach = len(bucket_of) // 2
    distance = np.arange(length - count, length)[:, None] - np.arange(length)
    bucket = bucket_of[np.clip(distance, -reach, reach) + reach]  # count, length
    shift = np.zeros((1, count, length), np.float32)
    if of_q is not None:
        shift = shift + of_q[np.arange(count)[:, None], :, bucket].transpose(2, 0, 1)
    if of_k is not None:
        shift = shift + of_k[np.arange(length), :, bucket].transpose(2, 0, 1)
    return shift if of_head is None else shift + of_head[bucket].transpose(2, 0, 1)


def _one_sequence(
    q: Array,
    k: Array,
    v: Array,
    sinks: Array | None,
    scale: float,
    window: int,
    softcap: float,
    ahead: int,
    shift: Array | np.float32,
) -> Array:
    count, length = len(q), len(k)
    queries = q.reshape(count, -1, k.shape[2])
    group = queries.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, k) * np.float32(scale) + shift
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
