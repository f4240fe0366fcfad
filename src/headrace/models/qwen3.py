"""Qwen 3: Llama with an RMS norm on every query and key head, before the rotation."""

from __future__ import annotations

from dataclasses import replace

from headrace.models import llama
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.models.qwen2 import layer_windows
from headrace.ops.builder import Builder
from headrace.ops.rms_norm import rms_norm
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean


def read_config(config: Config) -> DecoderConfig:
    decoder = read_decoder(config)
    bias = boolean(config, "attention_bias", False)
    windows = layer_windows(config, decoder.layers)
    return replace(decoder, qkv_bias=bias, output_bias=bias, windows=windows)


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    q, k, v = llama.project_qkv(m, c, layer, x)
    at = f"model.layers.{layer}.self_attn"
    q = rms_norm(q, m.weight(f"{at}.q_norm.weight", c.head_dim), eps=c.eps)
    k = rms_norm(k, m.weight(f"{at}.k_norm.weight", c.head_dim), eps=c.eps)
    return llama.attend_and_project(m, c, layer, q, k, v)


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, attention)
