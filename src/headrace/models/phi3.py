"""Phi 3 and 4: Llama with fused q, k, v and fused gate, up; RoPE may rotate part of a head."""

from __future__ import annotations

from typing import cast

from headrace.models import blocks, llama
from headrace.models.blocks import project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.builder import Builder
from headrace.ops.gated_act import gated_act
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, find, integer, number


def read_config(config: Config) -> DecoderConfig:
    window = integer(config, "sliding_window", 0, minimum=0)
    share = number(config, "partial_rotary_factor", 1.0)
    return read_decoder(config | _longrope(config), window=window, rotary_share=share)


def _longrope(config: Config) -> Config:
    """The rotary settings with today's name of longrope and the config's own original context, which counts
    more than theirs."""
    field = "rope_scaling" if find(config, "rope_scaling") else "rope_parameters"
    table = find(config, field)
    if not isinstance(table, dict):
        return {}
    table = dict(cast("Config", table))
    if table.get("rope_type", table.get("type")) in ("su", "yarn"):
        table["rope_type"] = "longrope"
    table["original_max_position_embeddings"] = find(config, "original_max_position_embeddings")
    return {field: table}


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at = f"model.layers.{layer}.self_attn"
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    every = queries + 2 * keys
    q = project(m, x, f"{at}.qkv_proj", queries, part=TensorSlice(of=every))
    k = project(m, x, f"{at}.qkv_proj", keys, part=TensorSlice(of=every, first=queries))
    v = project(m, x, f"{at}.qkv_proj", keys, part=TensorSlice(of=every, first=queries + keys))
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.o_proj", c.hidden)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at, size = f"model.layers.{layer}.mlp", c.intermediate
    gate = project(m, x, f"{at}.gate_up_proj", size, part=TensorSlice(of=2 * size))
    up = project(m, x, f"{at}.gate_up_proj", size, part=TensorSlice(of=2 * size, first=size))
    return project(m, gated_act(gate, up, kind=c.act), f"{at}.down_proj", c.hidden)


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, attention, mlp)
