"""Llama 2, 3, 3.x: the base decoder that most other definitions vary."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.models import blocks
from headrace.models.blocks import norm, project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gated_act import gated_act
from headrace.ops.gather import gather
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean

Branch = Callable[[Builder, DecoderConfig, int, Value], Value]
"""Computes what is added to the residual stream, from builder, config, layer index and normed input."""


def read_config(config: Config) -> DecoderConfig:
    return with_biases(config, read_decoder(config))


def with_biases(config: Config, decoder: DecoderConfig) -> DecoderConfig:
    """The config with biases set from `attention_bias` and `mlp_bias`."""
    bias = boolean(config, "attention_bias", False)
    mlp_bias = boolean(config, "mlp_bias", False)
    return replace(decoder, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


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
    y = blocks.attention(m, c, layer, q, k, v)
    return project(m, y, f"model.layers.{layer}.self_attn.o_proj", c.hidden, bias=c.output_bias)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    return gated_mlp(m, c, x, f"model.layers.{layer}.mlp", c.intermediate)


def gated_mlp(m: Builder, c: DecoderConfig, x: Value, at: str, size: int) -> Value:
    gate = project(m, x, f"{at}.gate_proj", size, bias=c.mlp_bias)
    up = project(m, x, f"{at}.up_proj", size, bias=c.mlp_bias)
    return project(m, gated_act(gate, up, kind=c.act), f"{at}.down_proj", c.hidden, bias=c.mlp_bias)


def define(m: Builder, c: DecoderConfig, attention: Branch = attention, mlp: Branch = mlp) -> Value:
    """Logits [R, V]; other architectures pass their own attention or MLP."""
    x = gather(_layers(m, c, attention, mlp), m.rows)
    return blocks.logits(m, c, norm(m, c, x, "model.norm"))


def encode(m: Builder, c: DecoderConfig, attention: Branch = attention, mlp: Branch = mlp) -> Value:
    """Hidden states [T, hidden] of all tokens; parameters as in `define`."""
    return norm(m, c, _layers(m, c, attention, mlp), "model.norm")


def _layers(m: Builder, c: DecoderConfig, attention: Branch, mlp: Branch) -> Value:
    x = blocks.embed_tokens(m, c)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        x = add(x, attention(m, c, layer, norm(m, c, x, f"{at}.input_layernorm")))
        x = add(x, mlp(m, c, layer, norm(m, c, x, f"{at}.post_attention_layernorm")))
    return x
