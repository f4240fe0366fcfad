"""StarCoder 2: Llama with layer norms, biases and an MLP without a gate."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import blocks, llama
from headrace.models.blocks import layer_norm
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number


def read_config(config: Config) -> DecoderConfig:
    window = integer(config, "sliding_window", 0, minimum=0)
    c = read_decoder(config, window=window)
    bias = boolean(config, "use_bias", True)
    eps = number(config, "norm_epsilon", minimum=0.0)
    return replace(c, eps=eps, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


def define(m: Builder, c: DecoderConfig) -> Value:
    x = blocks.embed_tokens(m, c)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        x = add(x, llama.attention(m, c, layer, layer_norm(m, c, x, f"{at}.input_layernorm")))
        y = layer_norm(m, c, x, f"{at}.post_attention_layernorm")
        x = add(x, blocks.mlp(m, c, y, f"{at}.mlp.c_fc", f"{at}.mlp.c_proj"))
    return blocks.logits(m, c, layer_norm(m, c, gather(x, m.rows), "model.norm"))
