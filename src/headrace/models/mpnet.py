"""MPNet: RoBERTa without token types, with one relative position bias for all layers."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import bert, blocks
from headrace.models.blocks import RelativeBias, layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.models.relative import t5_buckets
from headrace.models.roberta import after_padding
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, integer

_PADDING = 1  # whatever pad_token_id says
_MAX_DISTANCE = 128
_BUCKETS = 32


def read_config(config: Config) -> DecoderConfig:
    c = bert.read_absolute(config | {"type_vocab_size": 0})
    buckets = integer(config, "relative_attention_num_buckets", _BUCKETS)
    if buckets != _BUCKETS:  # `transformers` computes with 32 whatever the config says
        raise UnsupportedModel(
            f"config.json: relative_attention_num_buckets is {buckets}, expected {_BUCKETS}"
        )
    return replace(after_padding(c, _PADDING), position_buckets=buckets)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    at = "mpnet.embeddings"
    x = layer_norm(m, c, bert.embeddings(m, c, at, c.hidden), f"{at}.LayerNorm")
    bias = _position_bias(m, c)
    for layer in range(c.layers):
        at = f"mpnet.encoder.layer.{layer}"
        q, k, v = (project(m, x, f"{at}.attention.attn.{name}", c.hidden, bias=True) for name in "qkv")
        y = blocks.attention(m, c, layer, q, k, v, relative=bias)
        y = project(m, y, f"{at}.attention.attn.o", c.hidden, bias=True)
        x = layer_norm(m, c, add(y, x), f"{at}.attention.LayerNorm")
        y = blocks.mlp(m, c, x, f"{at}.intermediate.dense", f"{at}.output.dense")
        x = layer_norm(m, c, add(y, x), f"{at}.output.LayerNorm")
    return x


def _position_bias(m: Builder, c: DecoderConfig) -> RelativeBias:
    count = c.position_buckets * c.heads
    # The tensor is a table of buckets.
    part = TensorSlice(of=count, matrices=c.position_buckets)
    table = m.weight("mpnet.encoder.relative_attention_bias.weight", count, part=part)
    reach = min(c.context - 1, _MAX_DISTANCE)  # all that is farther is in the last bucket
    bucket_of = m.constant("bucket_of", t5_buckets(reach, c.position_buckets, _MAX_DISTANCE))
    return RelativeBias(c.position_buckets, None, None, table, bucket_of)
