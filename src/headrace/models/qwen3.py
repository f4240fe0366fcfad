"""Qwen 3: Llama with an RMS norm on every query and key head, before RoPE."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import llama
from headrace.models.blocks import norm
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.models.qwen2 import upper_windows
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config


def read_config(config: Config) -> DecoderConfig:
    decoder = llama.with_biases(config, read_decoder(config))
    return replace(decoder, windows=upper_windows(config, decoder.layers))


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    q, k, v = llama.project_qkv(m, c, layer, x)
    at = f"model.layers.{layer}.self_attn"
    q = norm(m, c, q, f"{at}.q_norm", c.head_dim)
    k = norm(m, c, k, f"{at}.k_norm", c.head_dim)
    return llama.attend_and_project(m, c, layer, q, k, v)


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, attention)


def encode(m: Builder, c: DecoderConfig) -> Value:
    return llama.encode(m, c, attention)
