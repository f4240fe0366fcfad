"""Granite 3: Llama with four multipliers: embeddings, attention scores, residuals, logits."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import blocks, llama
from headrace.models.blocks import norm
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.scale import scale
from headrace.ops.value import Value
from headrace.weights.config_json import Config, number


def read_config(config: Config) -> DecoderConfig:
    return replace(
        llama.read_config(config),
        embedding_scale=number(config, "embedding_multiplier", 1.0),
        attention_scale=number(config, "attention_multiplier", 1.0),
        residual_scale=number(config, "residual_multiplier", 1.0),
        logits_scale=1 / number(config, "logits_scaling", 1.0, minimum=1e-6),
    )


def define(m: Builder, c: DecoderConfig) -> Value:
    x = blocks.embed_tokens(m, c)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        y = llama.attention(m, c, layer, norm(m, c, x, f"{at}.input_layernorm"))
        x = add(x, scale(y, by=c.residual_scale))
        y = llama.mlp(m, c, layer, norm(m, c, x, f"{at}.post_attention_layernorm"))
        x = add(x, scale(y, by=c.residual_scale))
    return blocks.logits(m, c, norm(m, c, gather(x, m.rows), "model.norm"))
