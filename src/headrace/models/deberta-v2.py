"""DeBERTa v2 and v3: BERT whose attention adds products of contents with relative positions (disentangled
attention). A layer's projections of the position table do not depend on a text and are computed at loading.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import bert, blocks
from headrace.models.blocks import RelativeBias, layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.models.relative import deberta_buckets
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.head_linear import head_linear
from headrace.ops.tensor_part import DerivedTensor
from headrace.ops.value import Array, Value
from headrace.weights.config_json import Config, boolean, find, integer, text, texts

_MAX_SPAN = 4096
_MAX_DISTANCE = 2**16
"""The table of buckets has two entries for each distance up to the farthest."""


def read_config(config: Config) -> DebertaConfig:
    _refuse_variants(config)
    c = bert.read_absolute(config)
    kinds = _position_kinds(config)
    relative = boolean(config, "relative_attention", False)
    longest = integer(config, "max_relative_positions", -1, minimum=-1)
    longest = c.context if longest < 1 else longest
    buckets = integer(config, "position_buckets", -1, minimum=-1)
    span = buckets if buckets > 0 else longest
    if relative and (span > _MAX_SPAN or span < 2 or (buckets > 0 and longest - 1 <= buckets // 2)):
        raise UnsupportedModel(
            f"config.json: position_buckets {buckets} of max_relative_positions {longest} are not supported"
        )
    if relative and buckets > 0 and min(longest, c.context) > _MAX_DISTANCE:
        raise UnsupportedModel(
            f"config.json: position_buckets for max_position_embeddings {c.context:,} and"
            f" max_relative_positions {longest:,} are not supported: the farthest distance"
            f" may be {_MAX_DISTANCE:,}"
        )
    return DebertaConfig(
        c=replace(
            c,
            attention_scale=(c.head_dim * (1 + len(kinds))) ** -0.5,
            embedding=integer(config, "embedding_size", c.hidden),
        ),
        positions=boolean(config, "position_biased_input", True),
        span=span if relative and kinds else 0,
        max_distance=longest if buckets > 0 else None,
        kinds=kinds,
        shared=boolean(config, "share_att_key", False),
        normed="layer_norm" in text(config, "norm_rel_ebd", "none").lower().split("|"),
    )


class DebertaConfig(Struct, frozen=True, kw_only=True, eq=False):
    """Beside BERT's: `positions` are added to the embeddings. Attention has biases of `kinds` by `span`
    distances to each side (0: none), in buckets if there is a `max_distance`; the table of positions may be
    `normed`, and its projections are those of contents where `shared`.
    """

    c: DecoderConfig
    positions: bool
    span: int
    max_distance: int | None
    kinds: frozenset[str]
    shared: bool
    normed: bool

    @property
    def hidden(self) -> int:
        return self.c.hidden

    @property
    def layers(self) -> int:
        return self.c.layers

    @property
    def heads(self) -> int:
        return self.c.heads

    @property
    def kv_heads(self) -> int:
        return self.c.kv_heads

    @property
    def vocabulary(self) -> int:
        return self.c.vocabulary

    @property
    def context(self) -> int:
        return self.c.context


def _refuse_variants(config: Config) -> None:
    if integer(config, "conv_kernel_size", 0, minimum=0):
        raise UnsupportedModel(
            "config.json: conv_kernel_size: the convolution of deberta-v2-xlarge and -xxlarge is not"
            " supported: use a DeBERTa v3 checkpoint, which has none"
        )
    heads, hidden = integer(config, "num_attention_heads"), integer(config, "hidden_size")
    if integer(config, "attention_head_size", hidden // heads) * heads != hidden:
        raise UnsupportedModel("config.json: attention_head_size other than hidden_size / heads")


def _position_kinds(config: Config) -> frozenset[str]:
    kinds = find(config, "pos_att_type")
    names = kinds.split("|") if isinstance(kinds, str) else texts(config, "pos_att_type") or ()
    found = frozenset(name.strip().lower() for name in names if name.strip())
    if not found <= {"c2p", "p2c"}:
        raise UnsupportedModel(
            f"config.json: pos_att_type is {sorted(found)!r:.80}, known are 'c2p' and 'p2c'"
        )
    return found


def encode(m: Builder, d: DebertaConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    c, at = d.c, "deberta.embeddings"
    x = _embeddings(m, d, at)
    if c.embedding != c.hidden:
        x = project(m, x, f"{at}.embed_proj", c.hidden)
    x = layer_norm(m, c, x, f"{at}.LayerNorm")

    def attention(m: Builder, c: DecoderConfig, layer: int, x: Value, at: str) -> Value:
        names = ("query_proj", "key_proj", "value_proj")
        q, k, v = (project(m, x, f"{at}.self.{name}", c.hidden, bias=True) for name in names)
        bias = _relative_bias(m, d, f"{at}.self", q, k) if d.span else None
        y = blocks.attention(m, c, layer, q, k, v, relative=bias)
        return project(m, y, f"{at}.output.dense", c.hidden, bias=True)

    return bert.layers(m, c, x, "deberta", attention)


def _embeddings(m: Builder, d: DebertaConfig, at: str) -> Value:
    c = d.c
    if d.positions:
        return bert.embeddings(m, c, at, c.embedding)
    words = f"{at}.word_embeddings.weight"
    if c.token_types:
        raise UnsupportedModel("config.json: type_vocab_size without position_biased_input is not supported")
    return embed(m.tokens, m.weight(words, c.vocabulary, c.embedding))


def _relative_bias(m: Builder, d: DebertaConfig, at: str, q: Value, k: Value) -> RelativeBias:
    key, query = ("key_proj", "query_proj") if d.shared else ("pos_key_proj", "pos_query_proj")
    of_query = head_linear(q, _projected(m, d, f"{at}.{key}")) if "c2p" in d.kinds else None
    of_key = head_linear(k, _projected(m, d, f"{at}.{query}")) if "p2c" in d.kinds else None
    reach = d.c.context - 1
    # What is farther is in the last bucket.
    reach = min(reach, d.span if d.max_distance is None else d.max_distance)
    bucket_of = m.constant("bucket_of", deberta_buckets(reach, d.span, d.max_distance))
    return RelativeBias(2 * d.span, of_query, of_key, None, bucket_of)


def _projected(m: Builder, d: DebertaConfig, name: str) -> Value:
    """Rows [heads * positions, head_dim]: a projection of the position table, times the scale of scores."""
    c, count = d.c, 2 * d.span
    table, norm = "deberta.encoder.rel_embeddings.weight", "deberta.encoder.LayerNorm"
    tensors: list[tuple[str, tuple[int, ...]]] = [
        (table, (count, c.hidden)),
        (f"{name}.weight", (c.hidden, c.hidden)),
        (f"{name}.bias", (c.hidden,)),
    ]
    if d.normed:
        tensors += [(f"{norm}.weight", (c.hidden,)), (f"{norm}.bias", (c.hidden,))]

    def compute(rows: Array, w: Array, bias: Array, *normed: Array) -> Array:
        if normed:
            rows = rows - rows.mean(-1, keepdims=True)
            rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + np.float32(c.eps))
            rows = rows * normed[0] + normed[1]
        by_head = (rows @ w.T + bias).reshape(count, c.heads, c.head_dim).transpose(1, 0, 2)
        return by_head.reshape(-1, c.head_dim) * np.float32(c.attention_scale)

    label = f"{name}({'norm ' if d.normed else ''}{table}) eps {c.eps} scale {c.attention_scale}"
    return m.derived(label, c.heads * count, c.head_dim, of=DerivedTensor(tuple(tensors), compute))
