"""Jina's XLM-RoBERTa (Sturua et al. 2024, jina-embeddings-v3): rotary positions, and packed queries, keys and
values. jina-reranker-v2 has the same layers with absolute positions.

Low-rank adapters for tasks are not computed: without one it is the model that they were trained on.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import bert, blocks, packed_encoder
from headrace.models.blocks import layer_norm
from headrace.models.decoder_config import DecoderConfig
from headrace.models.packed_encoder import LayerNames
from headrace.models.rope import read_rope
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, find, text

_NAMES = LayerNames("roberta.encoder.layers", "mixer.Wqkv", "mixer.out_proj", "norm1", "norm2")


def read_config(config: Config) -> DecoderConfig:
    positions = text(config, "position_embedding_type", "rotary")
    if positions != "rotary":
        raise UnsupportedModel(
            f"config.json: position_embedding_type '{positions:.40}' is not supported: 'rotary'"
        )
    c = bert.read_absolute(config | {"position_embedding_type": "absolute"})
    theta = find(config, "rotary_emb_base")
    rope = read_rope(config if theta is None else {"rope_theta": theta}, c.head_dim)
    return replace(c, ropes=(rope,) * c.layers, qkv_bias=True, output_bias=True)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    at = "roberta.embeddings"
    rotates = c.ropes[0] is not None
    x = packed_encoder.typed_tokens(m, c, at) if rotates else bert.embeddings(m, c, at, c.hidden)
    return packed_encoder.layers(m, c, layer_norm(m, c, x, "roberta.emb_ln"), _NAMES, _mlp)


def _mlp(m: Builder, c: DecoderConfig, x: Value, at: str) -> Value:
    return blocks.mlp(m, c, x, f"{at}.fc1", f"{at}.fc2")
