"""OLMo 2: norms after attention and MLP instead of before, and RMS norms over all queries and all keys."""

from __future__ import annotations

from headrace.models import blocks, llama
from headrace.models.blocks import norm
from headrace.models.decoder_config import DecoderConfig
from headrace.models.llama import read_config
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.value import Value

__all__ = ["define", "read_config"]


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    q, k, v = llama.project_qkv(m, c, layer, x)
    at = f"model.layers.{layer}.self_attn"
    q, k = norm(m, c, q, f"{at}.q_norm"), norm(m, c, k, f"{at}.k_norm")
    return llama.attend_and_project(m, c, layer, q, k, v)


def define(m: Builder, c: DecoderConfig) -> Value:
    x = blocks.embed_tokens(m, c)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        x = add(x, norm(m, c, attention(m, c, layer, x), f"{at}.post_attention_layernorm"))
        x = add(x, norm(m, c, llama.mlp(m, c, layer, x), f"{at}.post_feedforward_layernorm"))
    return blocks.logits(m, c, norm(m, c, gather(x, m.rows), "model.norm"))
