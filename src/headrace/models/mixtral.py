"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import llama, mistral
from headrace.models.blocks import softmax_experts
from headrace.models.decoder_config import DecoderConfig, read_experts
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config


def read_config(config: Config) -> DecoderConfig:
    decoder = mistral.read_config(config)
    layers = (True,) * decoder.layers
    experts = read_experts(config, "num_local_experts", decoder.intermediate, layers, normalize=True)
    return replace(decoder, experts=experts)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    return softmax_experts(m, c, x, f"model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2"))


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, mlp=mlp)
