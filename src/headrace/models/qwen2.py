"""Qwen 2 and 2.5: Llama with biases on q, k and v; a window on the upper layers where it is switched on."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import UnsupportedModel
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.models.llama import define
from headrace.weights.config_json import Config, boolean, integer, texts

__all__ = ["define", "layer_windows", "read_config"]


def read_config(config: Config) -> DecoderConfig:
    decoder = read_decoder(config)
    return replace(decoder, qkv_bias=True, windows=layer_windows(config, decoder.layers))


def layer_windows(config: Config, layers: int) -> tuple[int, ...]:
    """Sliding windows by layer: `layer_types` where they are listed, else from `max_window_layers` up."""
    if not boolean(config, "use_sliding_window", False):
        return (0,) * layers
    window = integer(config, "sliding_window")
    types = texts(config, "layer_types")
    if types is None:
        first = integer(config, "max_window_layers", layers, minimum=0)
        return tuple(window if layer >= first else 0 for layer in range(layers))
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"config.json: 'layer_types' is {types!r:.120}, expected {layers} known types")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)
