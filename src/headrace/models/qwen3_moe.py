"""Qwen 3 MoE: Qwen 3 with a mixture of experts in all layers except those the config excludes."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import llama, qwen3
from headrace.models.blocks import softmax_experts
from headrace.models.decoder_config import DecoderConfig, read_decoder, read_experts
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, integers


def read_config(config: Config) -> DecoderConfig:
    decoder = llama.with_biases(config, read_decoder(config, window=_window(config)))
    plain = integers(config, "mlp_only_layers") or ()
    every = integer(config, "decoder_sparse_step", 1)
    layers = tuple(layer not in plain and (layer + 1) % every == 0 for layer in range(decoder.layers))
    intermediate = integer(config, "moe_intermediate_size")
    normalize = boolean(config, "norm_topk_prob", False)
    experts = read_experts(config, "num_experts", intermediate, layers, normalize=normalize)
    return replace(decoder, experts=experts)


def _window(config: Config) -> int:
    """Of all layers, unlike in Qwen 3."""
    return integer(config, "sliding_window", 0) if boolean(config, "use_sliding_window", False) else 0


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    assert c.experts is not None
    if not c.experts.layers[layer]:
        return llama.mlp(m, c, layer, x)
    return softmax_experts(m, c, x, f"model.layers.{layer}.mlp", ("gate_proj", "up_proj", "down_proj"))


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, qwen3.attention, mlp)
