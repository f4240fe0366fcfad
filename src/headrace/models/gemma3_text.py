"""Gemma 3, text only: Gemma 2 with head norms instead of soft caps, and two RoPE bases."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import gemma2, llama
from headrace.models.decoder_config import DecoderConfig
from headrace.models.rope import read_rope
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, find, integer, number


def read_config(config: Config) -> DecoderConfig:
    full, local = _ropes(config)
    plain = {name: value for name, value in config.items() if name not in ("rope_parameters", "rope_scaling")}
    c = gemma2.read_gemma(plain, window_interval=integer(config, "sliding_window_pattern", 6))
    full, local = (read_rope(table, c.head_dim) for table in (full, local))
    return replace(c, ropes=tuple(local if window else full for window in c.windows))


def _ropes(config: Config) -> tuple[Config, Config]:
    """Rotary settings of full-attention and sliding-window layers, from either config spelling."""
    nested = find(config, "rope_parameters")
    if nested is not None:
        return _settings(config, "full_attention", 1e6), _settings(config, "sliding_attention", 1e4)
    scaling, theta = find(config, "rope_scaling"), number(config, "rope_theta", 1e6)
    return {"rope_theta": theta, "rope_scaling": scaling}, {
        "rope_theta": number(config, "rope_local_base_freq", 1e4)
    }


def _settings(config: Config, kind: str, theta: float) -> Config:
    return {"rope_theta": theta, "rope_parameters": find(config, f"rope_parameters.{kind}")}


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    q, k, v = llama.project_qkv(m, c, layer, x)
    at = f"model.layers.{layer}.self_attn"
    q = gemma2.norm(m, c, q, f"{at}.q_norm", c.head_dim)
    k = gemma2.norm(m, c, k, f"{at}.k_norm", c.head_dim)
    return llama.attend_and_project(m, c, layer, q, k, v)


def define(m: Builder, c: DecoderConfig) -> Value:
    return gemma2.define(m, c, attention)


def encode(m: Builder, c: DecoderConfig) -> Value:
    return gemma2.encode(m, c, attention)
