"""ALBERT (Lan et al. 2020): BERT with narrower embeddings, all of whose layers have the same weights."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import bert, blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, integer

_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def read_config(config: Config) -> DecoderConfig:
    for field in ("num_hidden_groups", "inner_group_num"):
        if integer(config, field, 1) != 1:
            raise UnsupportedModel(
                f"config.json: {field} other than 1 is not supported: no published ALBERT has several groups"
            )
    c = bert.read_absolute(config)
    return replace(c, embedding=integer(config, "embedding_size", 128))


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    at = "albert.embeddings"
    x = layer_norm(m, c, bert.embeddings(m, c, at, c.embedding), f"{at}.LayerNorm")
    x = project(m, x, "albert.encoder.embedding_hidden_mapping_in", c.hidden, bias=True)
    at = f"{_LAYER}.attention"
    for layer in range(c.layers):
        q, k, v = (project(m, x, f"{at}.{name}", c.hidden, bias=True) for name in ("query", "key", "value"))
        y = project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.dense", c.hidden, bias=True)
        x = layer_norm(m, c, add(y, x), f"{at}.LayerNorm")
        y = blocks.mlp(m, c, x, f"{_LAYER}.ffn", f"{_LAYER}.ffn_output")
        x = layer_norm(m, c, add(y, x), f"{_LAYER}.full_layer_layer_norm")
    return x
