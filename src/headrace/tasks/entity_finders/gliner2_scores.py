"""The head of GLiNER 2 in NumPy: what spans are compared with for each label."""

from __future__ import annotations

import numpy as np

from headrace.ops.value import Array
from headrace.tasks.entity_finders.gliner_scores import sigmoid
from headrace.weights.gliner2_head import HEADS, LabelEmbedding, LabelLayer, LabelTransformer, Norm

_EPSILON = np.float32(1e-5)


def label_queries(embedding: LabelEmbedding, labels: Array) -> Array:
    """Of the states [labels, hidden] at the labels' marks the vectors [labels, hidden] of the first
    instance."""
    size = labels.shape[1]
    before, own = embedding.inputs, embedding.hidden(labels)
    reset = sigmoid(before[:size] + own[:, :size])
    update = sigmoid(before[size : 2 * size] + own[:, size : 2 * size])
    new = np.tanh(before[2 * size :] + reset * own[:, 2 * size :])
    stepped = (new + update * (labels - new)).astype(np.float32, copy=False)
    if isinstance(embedding.last, LabelTransformer):
        return _transformed(embedding.last, stepped + labels)
    return embedding.last(np.concatenate([stepped, labels], axis=1))


def _transformed(transformer: LabelTransformer, x: Array) -> Array:
    inner = transformer.down(x)
    for layer in transformer.layers:
        inner = _normed(layer.attended, inner + _attended(layer, inner))
        inner = _normed(layer.done, inner + layer.mlp(inner))
    first, second, third = transformer.up
    both = np.concatenate([inner, x], axis=1)
    return third(np.maximum(second(np.maximum(first(both), 0)), 0))


def _attended(layer: LabelLayer, x: Array) -> Array:
    count, size = x.shape
    wide = layer.attend(x).reshape(count, 3, HEADS, size // HEADS)
    queries, keys, values = (wide[:, part].swapaxes(0, 1) for part in range(3))
    scores = queries @ keys.swapaxes(1, 2) / np.float32((size // HEADS) ** 0.5)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return layer.merge((weights @ values).swapaxes(0, 1).reshape(count, size))


def _normed(norm: Norm, x: Array) -> Array:
    centered = x - x.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1, keepdims=True)
    return centered / np.sqrt(variance + _EPSILON) * norm.weight + norm.bias
