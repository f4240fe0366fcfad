"""BERT: an encoder with learned positions, norms after attention and MLP, and token types for text pairs."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number, text


def read_config(config: Config) -> DecoderConfig:
    positions = text(config, "position_embedding_type", "absolute")
    if positions != "absolute" or boolean(config, "is_decoder", False):
        raise UnsupportedModel(
            f"config.json: position_embedding_type '{positions:.40}' or is_decoder is not supported:"
            " BERT is read as an encoder with absolute positions"
        )
    c = read_decoder(config)
    return replace(
        c,
        eps=number(config, "layer_norm_eps", minimum=0.0),
        ropes=(None,) * c.layers,
        bidirectional=True,
        token_types=integer(config, "type_vocab_size"),
        mlp_bias=True,
    )


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value, at: str) -> Value:
    q, k, v = (project(m, x, f"{at}.self.{name}", c.hidden, bias=True) for name in ("query", "key", "value"))
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.output.dense", c.hidden, bias=True)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    at = "bert.embeddings"
    x = blocks.embed_tokens(m, c, f"{at}.word_embeddings")
    x = add(x, embed(m.positions, m.weight(f"{at}.position_embeddings.weight", c.context, c.hidden)))
    x = add(x, embed(m.token_types, m.weight(f"{at}.token_type_embeddings.weight", c.token_types, c.hidden)))
    x = layer_norm(m, c, x, f"{at}.LayerNorm")
    for layer in range(c.layers):
        at = f"bert.encoder.layer.{layer}"
        y = attention(m, c, layer, x, f"{at}.attention")
        x = layer_norm(m, c, add(y, x), f"{at}.attention.output.LayerNorm")
        y = blocks.mlp(m, c, x, f"{at}.intermediate.dense", f"{at}.output.dense")
        x = layer_norm(m, c, add(y, x), f"{at}.output.LayerNorm")
    return x
