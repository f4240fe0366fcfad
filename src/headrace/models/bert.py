"""BERT: an encoder with learned positions, norms after attention and MLP, and token types for text pairs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks, jina_bert
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.tensor_part import DerivedTensor, TensorSlice
from headrace.ops.value import Array, Value
from headrace.weights.config_json import Config, boolean, integer, number, text


def read_config(config: Config) -> DecoderConfig:
    if text(config, "position_embedding_type", "absolute") == "alibi":
        absolute = config | {"position_embedding_type": "absolute"}
        return jina_bert.with_distances(config, read_absolute(absolute))
    return read_absolute(config)


def read_absolute(config: Config) -> DecoderConfig:
    """The config of BERT and its relatives, with a table of positions."""
    positions = text(config, "position_embedding_type", "absolute")
    if positions != "absolute" or boolean(config, "is_decoder", False):
        raise UnsupportedModel(
            f"config.json: position_embedding_type '{positions:.40}' or is_decoder is not supported:"
            " BERT and its relatives are read as encoders with absolute positions"
        )
    c = read_decoder(config)
    return replace(
        c,
        eps=number(config, "layer_norm_eps", minimum=0.0),
        ropes=(None,) * c.layers,
        bidirectional=True,
        token_types=integer(config, "type_vocab_size", minimum=0),
        mlp_bias=True,
    )


Attention = Callable[[Builder, DecoderConfig, int, Value, str], Value]
"""Computes attention with its output projection, from builder, config, layer, rows and prefix of names."""


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value, at: str) -> Value:
    q, k, v = (project(m, x, f"{at}.self.{name}", c.hidden, bias=True) for name in ("query", "key", "value"))
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.output.dense", c.hidden, bias=True)


def encode(m: Builder, c: DecoderConfig, prefix: str = "bert") -> Value:
    """Hidden states [T, hidden] of all tokens; names of tensors begin with `prefix`, or lack it."""
    if c.alibi:
        return jina_bert.encode(m, c, prefix)
    x = layer_norm(m, c, embeddings(m, c, f"{prefix}.embeddings", c.hidden), f"{prefix}.embeddings.LayerNorm")
    return layers(m, c, x, prefix)


def embeddings(m: Builder, c: DecoderConfig, at: str, width: int) -> Value:
    """Sum [T, width] of the embeddings of tokens, positions and token types."""
    x = embed(m.tokens, m.weight(f"{at}.word_embeddings.weight", c.vocabulary, width))
    x = add(x, embed(m.positions, _positions(m, c, at, width)))
    if c.token_types < 2:
        return x
    return add(x, embed(m.token_types, m.weight(f"{at}.token_type_embeddings.weight", c.token_types, width)))


def _positions(m: Builder, c: DecoderConfig, at: str, width: int) -> Value:
    """The position table [context, width]. A single token type is added to it: all tokens have it, and those
    of a pair's second text, which a step gives type 1, too.
    """
    first, name = c.first_position, f"{at}.position_embeddings.weight"
    whole = c.context + first
    if c.token_types == 1:
        types = f"{at}.token_type_embeddings.weight"

        def compute(positions: Array, types: Array) -> Array:
            return positions[first:] + types

        of = DerivedTensor(((name, (whole, width)), (types, (1, width))), compute)
        return m.derived(f"{name}[from {first}]+{types}", c.context, width, of=of)
    part = TensorSlice(of=whole, first=first) if first else None
    return m.weight(name, c.context, width, part=part)


def layers(m: Builder, c: DecoderConfig, x: Value, prefix: str, attention: Attention = attention) -> Value:
    """Hidden states after all layers, from normed embeddings."""
    for layer in range(c.layers):
        at = f"{prefix}.encoder.layer.{layer}"
        y = attention(m, c, layer, x, f"{at}.attention")
        x = layer_norm(m, c, add(y, x), f"{at}.attention.output.LayerNorm")
        y = blocks.mlp(m, c, x, f"{at}.intermediate.dense", f"{at}.output.dense")
        x = layer_norm(m, c, add(y, x), f"{at}.output.LayerNorm")
    return x
