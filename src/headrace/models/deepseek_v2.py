"""DeepSeek V2 (Lite): V3's attention, experts chosen by softmax."""

from __future__ import annotations

from headrace.errors import UnsupportedModel
from headrace.models import deepseek_v3, llama
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, text


def read_config(config: Config) -> DecoderConfig:
    method = text(config, "topk_method", "greedy")
    if method != "greedy" or boolean(config, "norm_topk_prob", False):
        raise UnsupportedModel(
            f"config.json: deepseek_v2 with topk_method '{method}' or norm_topk_prob is not supported; "
            "greedy without, as in V2 Lite, is"
        )
    return deepseek_v3.read_latent_decoder(config)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    return deepseek_v3.mixed_mlp(m, c, layer, x, kind="softmax")


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, deepseek_v3.attention, mlp)
