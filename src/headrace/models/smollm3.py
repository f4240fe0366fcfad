"""SmolLM 3: Llama with some layers without RoPE."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import llama
from headrace.models.decoder_config import DecoderConfig, read_decoder, read_windows
from headrace.models.llama import define
from headrace.weights.config_json import Config, boolean, integer, integers

__all__ = ["define", "read_config"]


def read_config(config: Config) -> DecoderConfig:
    c = llama.with_biases(config, read_decoder(config))
    rotates = _rotates(config, c.layers)
    ropes = tuple(rope if rotates[layer] else None for layer, rope in enumerate(c.ropes))
    if not boolean(config, "use_sliding_window", False):
        return replace(c, ropes=ropes)
    window = integer(config, "sliding_window", 0, minimum=0)
    windows = read_windows(config, c.layers, window, lambda layer: not rotates[layer])
    return replace(c, ropes=ropes, windows=windows)


def _rotates(config: Config, layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` holds, despite its name, 1 for layers with RoPE."""
    listed = integers(config, "no_rope_layers")
    if listed is not None and len(listed) >= layers:
        return tuple(bool(entry) for entry in listed)
    interval = integer(config, "no_rope_layer_interval", 4)
    return tuple((layer + 1) % interval != 0 for layer in range(layers))
