"""Qwen 2 and 2.5: Llama with biases on q, k and v; optional sliding window on the upper layers."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models.decoder_config import DecoderConfig, read_decoder, read_windows
from headrace.models.llama import define, encode
from headrace.weights.config_json import Config, boolean, integer

__all__ = ["define", "encode", "read_config", "upper_windows"]


def read_config(config: Config) -> DecoderConfig:
    decoder = read_decoder(config)
    return replace(decoder, qkv_bias=True, windows=upper_windows(config, decoder.layers))


def upper_windows(config: Config, layers: int) -> tuple[int, ...]:
    """Sliding window per layer: from `layer_types` if present, else on layers from `max_window_layers` up."""
    if not boolean(config, "use_sliding_window", False):
        return (0,) * layers
    first = integer(config, "max_window_layers", layers, minimum=0)
    return read_windows(config, layers, integer(config, "sliding_window"), lambda layer: layer >= first)
