"""JinaBERT (Günther et al. 2023, jina-embeddings-v2): BERT with biases by distance (ALiBi) instead of
positions, and a gated MLP. The `model_type` of its checkpoints is `bert`; that for code has norms of queries
and keys.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks, packed_encoder
from headrace.models.blocks import RelativeBias, layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.value import Array, Value
from headrace.weights.config_json import Config, text

_ACTS = {"geglu": "gelu", "reglu": "relu"}
_MAX_BIASES = 1 << 22
_NORMED = "jina-bert-v2-qk-post-norm"


def with_distances(config: Config, c: DecoderConfig) -> DecoderConfig:
    """BERT's config as JinaBERT's."""
    kind = text(config, "feed_forward_type", "original")
    if kind not in _ACTS:
        raise UnsupportedModel(
            f"config.json: feed_forward_type '{kind:.40}' with position_embedding_type 'alibi' is not"
            f" supported; known: {', '.join(_ACTS)}"
        )
    if c.context * c.heads > _MAX_BIASES:
        raise UnsupportedModel(
            f"config.json: biases of {c.heads:,} heads for {c.context:,} distances are not supported: at most"
            f" {_MAX_BIASES:,} numbers"
        )
    return replace(c, act=_ACTS[kind], alibi=True, qk_norm=_of_code(config))


def _of_code(config: Config) -> bool:
    """Whether the config is one of the code model's, which no other field tells."""
    named: list[object] = [config.get("_name_or_path")]
    classes = config.get("auto_map")
    if isinstance(classes, dict):
        named += classes.values()
    return any(_NORMED in name for name in named if isinstance(name, str))


def encode(m: Builder, c: DecoderConfig, prefix: str) -> Value:
    """Hidden states [T, hidden] of all tokens; names of tensors begin with `prefix`, or lack it."""
    at = f"{prefix}.embeddings"
    x = layer_norm(m, c, packed_encoder.typed_tokens(m, c, at), f"{at}.LayerNorm")
    bias = distance_bias(m, c)
    for layer in range(c.layers):
        at = f"{prefix}.encoder.layer.{layer}"
        y = add(_attention(m, c, layer, x, f"{at}.attention", bias), x)
        y = layer_norm(m, c, y, f"{at}.attention.output.LayerNorm")
        if c.qk_norm:
            y = layer_norm(m, c, add(y, x), f"{at}.layer_norm_1")
        x = layer_norm(m, c, add(_mlp(m, c, y, f"{at}.mlp"), y), _last_norm(c, at))
    return x


def _last_norm(c: DecoderConfig, at: str) -> str:
    return f"{at}.layer_norm_2" if c.qk_norm else f"{at}.mlp.layernorm"


def _attention(m: Builder, c: DecoderConfig, layer: int, x: Value, at: str, bias: RelativeBias) -> Value:
    names = ("query", "key", "value")
    q, k, v = (project(m, x, f"{at}.self.{name}", c.hidden, bias=True) for name in names)
    if c.qk_norm:
        q, k = layer_norm(m, c, q, f"{at}.self.layer_norm_q"), layer_norm(m, c, k, f"{at}.self.layer_norm_k")
    y = blocks.attention(m, c, layer, q, k, v, relative=bias)
    return project(m, y, f"{at}.output.dense", c.hidden, bias=True)


def _mlp(m: Builder, c: DecoderConfig, x: Value, at: str) -> Value:
    if c.qk_norm:
        up, gate = packed_encoder.packed(m, x, f"{at}.up_gated_layer", 2, c.intermediate)
        return packed_encoder.gated_mlp(m, c, gate, up, f"{at}.down_layer", bias=True)
    gate, up = packed_encoder.packed(m, x, f"{at}.gated_layers", 2, c.intermediate)
    return packed_encoder.gated_mlp(m, c, gate, up, f"{at}.wo", bias=True)


def distance_bias(m: Builder, c: DecoderConfig) -> RelativeBias:
    """ALiBi to both sides: minus the distance times the slope of the head."""
    distance = np.arange(1 - c.context, c.context, dtype=np.int32)
    table = -np.arange(c.context, dtype=np.float32)[:, None] * slopes(c.heads)
    bucket_of = m.constant("bucket_of", np.abs(distance))
    return RelativeBias(c.context, None, None, m.constant("distances", table.reshape(-1)), bucket_of)


def slopes(heads: int) -> Array:
    """Of each head the slope [heads] (Press et al. 2022, section 3): a geometric sequence from 2^(-8/n) for a
    power n of 2; other counts take the rest from every second one of the sequence for twice as many."""
    power = 1 << int(math.log2(heads))
    own = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    finer = 2.0 ** (-4.0 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([own, finer[: heads - power]]).astype(np.float32)
