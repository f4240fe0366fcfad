"""Mistral: Llama with sliding-window attention."""

from __future__ import annotations

from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.models.llama import define, encode
from headrace.weights.config_json import Config, integer

__all__ = ["define", "encode", "read_config"]


def read_config(config: Config) -> DecoderConfig:
    return read_decoder(config, window=integer(config, "sliding_window", 0, minimum=0))
