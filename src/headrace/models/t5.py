"""The encoder of T5 (Raffel et al. 2020): RMS norms before attention and MLP, no scale of scores, and one
relative position bias for all layers (sentence-t5, GTR).
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks
from headrace.models.blocks import RelativeBias, norm, project
from headrace.models.decoder_config import DecoderConfig, read_act, read_decoder
from headrace.models.relative import t5_buckets
from headrace.ops.act import act
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gated_act import gated_act
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, integer, number, text

_MAX_DISTANCE = 1 << 14


def read_config(config: Config) -> DecoderConfig:
    buckets = integer(config, "relative_attention_num_buckets", 32, maximum=1 << 12)
    farthest = integer(config, "relative_attention_max_distance", 128, maximum=_MAX_DISTANCE)
    if buckets < 4 or buckets % 2 or farthest <= buckets // 4:
        raise UnsupportedModel(
            f"config.json: {buckets} buckets (relative_attention_num_buckets) of distances up to {farthest}"
            " (relative_attention_max_distance) are not supported: an even number of at least 4, and a"
            " distance greater than a quarter of it"
        )
    gated, _, kind = text(config, "feed_forward_proj", "relu").rpartition("-")
    if gated not in ("", "gated"):
        raise UnsupportedModel("config.json: feed_forward_proj must be an activation, or 'gated-' and one")
    kind = "gelu_new" if (gated, kind) == ("gated", "gelu") else kind
    # A text may be as long as memory allows; `n_positions` is the length of training.
    c = read_decoder(
        config
        | {
            "max_position_embeddings": integer(config, "n_positions", 512, maximum=1 << 30),
            "hidden_act": "relu",
            "intermediate_size": integer(config, "d_ff"),
        }
    )
    return replace(
        c,
        eps=number(config, "layer_norm_epsilon", 1e-6, minimum=0.0),
        act=read_act({"feed_forward_proj": kind}, "feed_forward_proj"),
        gated=bool(gated),
        ropes=(None,) * c.layers,
        bidirectional=True,
        attention_scale=1.0,
        position_buckets=buckets,
        farthest=farthest,
    )


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    x = embed(m.tokens, m.weight("shared.weight", c.vocabulary, c.hidden))
    bias = _position_bias(m, c)
    for layer in range(c.layers):
        at = f"encoder.block.{layer}.layer"
        y = norm(m, c, x, f"{at}.0.layer_norm")
        q, k, v = (project(m, y, f"{at}.0.SelfAttention.{name}", c.heads * c.head_dim) for name in "qkv")
        y = blocks.attention(m, c, layer, q, k, v, relative=bias)
        x = add(x, project(m, y, f"{at}.0.SelfAttention.o", c.hidden))
        x = add(x, _mlp(m, c, norm(m, c, x, f"{at}.1.layer_norm"), f"{at}.1.DenseReluDense"))
    return norm(m, c, x, "encoder.final_layer_norm")


def _mlp(m: Builder, c: DecoderConfig, x: Value, at: str) -> Value:
    if not c.gated:
        y = act(project(m, x, f"{at}.wi", c.intermediate), kind=c.act)
    else:
        gate, up = (project(m, x, f"{at}.{name}", c.intermediate) for name in ("wi_0", "wi_1"))
        y = gated_act(gate, up, kind=c.act)
    return project(m, y, f"{at}.wo", c.hidden)


def _position_bias(m: Builder, c: DecoderConfig) -> RelativeBias:
    count = c.position_buckets * c.heads
    part = TensorSlice(of=count, matrices=c.position_buckets)  # the tensor is a table of buckets
    table = m.weight("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", count, part=part)
    reach = min(c.context - 1, c.farthest)  # all that is farther is in the last bucket
    bucket_of = m.constant("bucket_of", t5_buckets(reach, c.position_buckets, c.farthest))
    return RelativeBias(c.position_buckets, None, None, table, bucket_of)
