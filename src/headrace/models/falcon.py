"""Falcon 7B: attention and MLP in parallel after one layer norm, one key head for all queries."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number, text

_REQUIRED = {"alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True}


def read_config(config: Config) -> DecoderConfig:
    for field, wanted in _REQUIRED.items():
        if boolean(config, field, wanted) != wanted:
            raise UnsupportedModel(
                f"config.json: falcon with {field} = {str(not wanted).lower()} is not supported; 7b's is"
            )
    if integer(config, "num_ln_in_parallel_attn", 1) != 1:
        raise UnsupportedModel(
            "config.json: falcon with two norms in a layer is not supported; as in 7b it is"
        )
    common: Config = {
        "intermediate_size": integer(config, "ffn_hidden_size", 4 * integer(config, "hidden_size")),
        "hidden_act": text(config, "activation", "gelu"),
    }
    bias = boolean(config, "bias", False)
    return replace(
        read_decoder(config | common | {"num_key_value_heads": 1}),
        eps=number(config, "layer_norm_epsilon", 1e-5, minimum=0.0),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    """The fused matrix holds the rows of all queries, then of the key, then of the value."""
    at, queries = f"transformer.h.{layer}.self_attention", c.heads * c.head_dim
    q, k, v = (
        project(
            m,
            x,
            f"{at}.query_key_value",
            size,
            bias=c.qkv_bias,
            part=TensorSlice(of=queries + 2 * c.head_dim, first=first),
        )
        for first, size in ((0, queries), (queries, c.head_dim), (queries + c.head_dim, c.head_dim))
    )
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.dense", c.hidden, bias=c.output_bias)


def define(m: Builder, c: DecoderConfig) -> Value:
    x = blocks.embed_tokens(m, c, "transformer.word_embeddings")
    for layer in range(c.layers):
        at = f"transformer.h.{layer}"
        y = layer_norm(m, c, x, f"{at}.input_layernorm")
        x = add(x, blocks.mlp(m, c, y, f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h"))
        x = add(x, attention(m, c, layer, y))
    x = layer_norm(m, c, gather(x, m.rows), "transformer.ln_f")
    return blocks.logits(m, c, x, tied="transformer.word_embeddings")
