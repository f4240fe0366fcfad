"""Llama 2, 3, 3.x: the plain decoder that its relatives vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.kv.pages import PAGE_TOKENS
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.attend import attend
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gated_act import gated_act
from headrace.ops.gather import gather
from headrace.ops.kv_write import kv_write
from headrace.ops.linear import linear
from headrace.ops.rms_norm import rms_norm
from headrace.ops.rope import rope
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean

Attention = Callable[[Builder, DecoderConfig, int, Value], Value]


def read_config(config: Config) -> DecoderConfig:
    bias = boolean(config, "attention_bias", False)
    mlp_bias = boolean(config, "mlp_bias", False)
    return replace(read_decoder(config), qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    q, k, v = project_qkv(m, c, layer, x)
    return attend_and_project(m, c, layer, q, k, v)


def project_qkv(m: Builder, c: DecoderConfig, layer: int, x: Value) -> tuple[Value, Value, Value]:
    at = f"model.layers.{layer}.self_attn"
    q = project(m, x, f"{at}.q_proj", c.heads * c.head_dim, bias=c.qkv_bias)
    k = project(m, x, f"{at}.k_proj", c.kv_heads * c.head_dim, bias=c.qkv_bias)
    v = project(m, x, f"{at}.v_proj", c.kv_heads * c.head_dim, bias=c.qkv_bias)
    return q, k, v


def attend_and_project(m: Builder, c: DecoderConfig, layer: int, q: Value, k: Value, v: Value) -> Value:
    """Rotate q and k, write the cache, attend, project back to the residual stream."""
    inv_freq = m.constant("inv_freq", c.rope.inv_freq)
    q = rope(q, m.positions, inv_freq, head_dim=c.head_dim, scale=c.rope.scale)
    k = rope(k, m.positions, inv_freq, head_dim=c.head_dim, scale=c.rope.scale)
    cache = m.cache(layer, c.kv_heads * c.head_dim)
    kv_write(k, v, m.slots, cache)
    y = attend(
        q,
        cache,
        m.query_starts,
        m.lengths,
        m.block_tables,
        head_dim=c.head_dim,
        page_tokens=PAGE_TOKENS,
        scale=c.head_dim**-0.5,
        window=c.windows[layer],
        softcap=0.0,
    )
    return project(m, y, f"model.layers.{layer}.self_attn.o_proj", c.hidden, bias=c.output_bias)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at = f"model.layers.{layer}.mlp"
    gate = project(m, x, f"{at}.gate_proj", c.intermediate, bias=c.mlp_bias)
    up = project(m, x, f"{at}.up_proj", c.intermediate, bias=c.mlp_bias)
    return project(m, gated_act(gate, up, kind=c.act), f"{at}.down_proj", c.hidden, bias=c.mlp_bias)


def project(m: Builder, x: Value, name: str, size: int, *, bias: bool = False) -> Value:
    w = m.weight(f"{name}.weight", size, int(x.shape[1]))
    return linear(x, w, m.weight(f"{name}.bias", size) if bias else None)


def norm(m: Builder, c: DecoderConfig, x: Value, name: str) -> Value:
    return rms_norm(x, m.weight(f"{name}.weight", c.hidden), eps=c.eps)


def define(m: Builder, c: DecoderConfig, attention: Attention = attention) -> Value:
    """Logits [R, V]; a relative passes its own attention."""
    table = m.weight("model.embed_tokens.weight", c.vocabulary, c.hidden)
    x = embed(m.tokens, table)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        x = add(x, attention(m, c, layer, norm(m, c, x, f"{at}.input_layernorm")))
        x = add(x, mlp(m, c, layer, norm(m, c, x, f"{at}.post_attention_layernorm")))
    x = norm(m, c, gather(x, m.rows), "model.norm")
    return linear(x, table if c.tied else m.weight("lm_head.weight", c.vocabulary, c.hidden))
