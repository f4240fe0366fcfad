"""What NomicBERT, GTE and Jina's XLM-RoBERTa have in common: BERT's layers with norms after attention and
MLP, one matrix for queries, keys and values, and rotary positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace.models import blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gated_act import gated_act
from headrace.ops.tensor_part import DerivedTensor, TensorSlice
from headrace.ops.value import Array, Value

Mlp = Callable[[Builder, DecoderConfig, Value, str], Value]
"""Computes the MLP from builder, config, rows and prefix of names."""


class LayerNames(NamedTuple):
    """What the tensors of a layer are called, behind `layers` and its number."""

    layers: str
    packed: str
    output: str
    attention_norm: str
    mlp_norm: str


def layers(m: Builder, c: DecoderConfig, x: Value, names: LayerNames, mlp: Mlp) -> Value:
    """Hidden states after all layers, from normed embeddings."""
    for layer in range(c.layers):
        at = f"{names.layers}.{layer}"
        q, k, v = packed(m, x, f"{at}.{names.packed}", 3, c.hidden, bias=c.qkv_bias)
        y = blocks.attention(m, c, layer, q, k, v)
        y = project(m, y, f"{at}.{names.output}", c.hidden, bias=c.output_bias)
        x = layer_norm(m, c, add(y, x), f"{at}.{names.attention_norm}")
        x = layer_norm(m, c, add(mlp(m, c, x, f"{at}.mlp"), x), f"{at}.{names.mlp_norm}")
    return x


def packed(m: Builder, x: Value, name: str, count: int, size: int, *, bias: bool = False) -> list[Value]:
    """What `count` projections give that are one tensor `name`, with `size` outputs each."""
    parts = (TensorSlice(of=count * size, first=i * size) for i in range(count))
    return [project(m, x, name, size, bias=bias, part=part) for part in parts]


def gated_mlp(m: Builder, c: DecoderConfig, gate: Value, up: Value, down: str, *, bias: bool) -> Value:
    """The down projection of act(gate) * up."""
    return project(m, gated_act(gate, up, kind=c.act), down, c.hidden, bias=bias)


def typed_tokens(m: Builder, c: DecoderConfig, at: str) -> Value:
    """Sum [T, hidden] of the embeddings of tokens and token types, without positions."""
    x = embed(m.tokens, m.weight(f"{at}.word_embeddings.weight", c.vocabulary, c.hidden))
    types = f"{at}.token_type_embeddings.weight"
    if c.token_types == 1:  # for all tokens, those of a pair's second text too, which a step gives type 1
        twice = DerivedTensor(((types, (1, c.hidden)),), _twice)
        return add(x, embed(m.token_types, m.derived(f"2 x {types}", 2, c.hidden, of=twice)))
    if not c.token_types:
        return x
    return add(x, embed(m.token_types, m.weight(types, c.token_types, c.hidden)))


def _twice(row: Array) -> Array:
    return np.repeat(row, 2, axis=0)
