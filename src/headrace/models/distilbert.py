"""DistilBERT: BERT of half the layers, without token types, under other names."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import bert, blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_act
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config

_EPS = 1e-12  # its configs do not give it


def read_config(config: Config) -> DecoderConfig:
    names = {"intermediate_size": config.get("hidden_dim"), "type_vocab_size": 0, "layer_norm_eps": _EPS}
    names |= {"hidden_act": config.get("activation")}
    return replace(bert.read_absolute(config | names), act=read_act(config, "activation", "gelu"))


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value, at: str) -> Value:
    q, k, v = (project(m, x, f"{at}.{name}_lin", c.hidden, bias=True) for name in "qkv")
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.out_lin", c.hidden, bias=True)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    at = "distilbert.embeddings"
    x = layer_norm(m, c, bert.embeddings(m, c, at, c.hidden), f"{at}.LayerNorm")
    for layer in range(c.layers):
        at = f"distilbert.transformer.layer.{layer}"
        x = layer_norm(m, c, add(attention(m, c, layer, x, f"{at}.attention"), x), f"{at}.sa_layer_norm")
        y = blocks.mlp(m, c, x, f"{at}.ffn.lin1", f"{at}.ffn.lin2")
        x = layer_norm(m, c, add(y, x), f"{at}.output_layer_norm")
    return x
