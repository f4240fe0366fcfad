"""Gemma 2: norms before and after attention and MLP, soft-capped scores and logits, sliding windows on
every other layer. Norm weights are stored minus one.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import blocks, llama
from headrace.models.decoder_config import DecoderConfig, read_act, read_decoder, read_windows
from headrace.models.llama import Branch
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number


def read_config(config: Config) -> DecoderConfig:
    return read_gemma(config, window_interval=2)


def read_gemma(config: Config, *, window_interval: int) -> DecoderConfig:
    """Config of Gemma 2 and 3. Without `layer_types`, every `window_interval`-th layer has no window."""
    both_ways = boolean(config, "use_bidirectional_attention", False)
    c = llama.with_biases(config, read_decoder(config))
    # `window` counts one side, including the token itself; of an encoder the field counts both sides.
    window = integer(config, "sliding_window")
    window = window // 2 + 1 if both_ways else window
    return replace(
        c,
        act=read_act(config, "hidden_activation"),
        windows=read_windows(config, c.layers, window, lambda layer: (layer + 1) % window_interval != 0),
        attention_scale=number(config, "query_pre_attn_scalar", minimum=1e-6) ** -0.5,
        attention_softcap=number(config, "attn_logit_softcapping", 0.0, minimum=0.0),
        logits_softcap=number(config, "final_logit_softcapping", 0.0, minimum=0.0),
        embedding_scale=c.hidden**0.5,
        bidirectional=both_ways or c.bidirectional,
    )


def norm(m: Builder, c: DecoderConfig, x: Value, name: str, size: int = 0) -> Value:
    return blocks.norm(m, c, x, name, size, plus=1.0)


def define(m: Builder, c: DecoderConfig, attention: Branch = llama.attention) -> Value:
    x = gather(_layers(m, c, attention), m.rows)
    return blocks.logits(m, c, norm(m, c, x, "model.norm"))


def encode(m: Builder, c: DecoderConfig, attention: Branch = llama.attention) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    return norm(m, c, _layers(m, c, attention), "model.norm")


def _layers(m: Builder, c: DecoderConfig, attention: Branch) -> Value:
    x = blocks.embed_tokens(m, c)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        y = attention(m, c, layer, norm(m, c, x, f"{at}.input_layernorm"))
        x = add(x, norm(m, c, y, f"{at}.post_attention_layernorm"))
        y = llama.mlp(m, c, layer, norm(m, c, x, f"{at}.pre_feedforward_layernorm"))
        x = add(x, norm(m, c, y, f"{at}.post_feedforward_layernorm"))
    return x
