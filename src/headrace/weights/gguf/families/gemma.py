"""Gemma 2 and 3: norms around attention and MLP whose weights files keep plus one."""

from __future__ import annotations

from typing import cast

import numpy as np

from headrace.weights.config_json import Config, find, integer, number, texts
from headrace.weights.gguf.architecture import (
    ATTENTION,
    HEAD_NORMS,
    MLP,
    TOP,
    Architecture,
    ConfigField,
    TensorTransform,
)
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.rope_keys import scaling_keys

_BLOCK = (
    ATTENTION
    | MLP
    | {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_CHANGES = {"norm.weight": TensorTransform(lambda w: w + np.float32(1), lambda w: w - np.float32(1))}
_WINDOW = ConfigField("sliding_window", "attention.sliding_window", default=4096)
_SCALE, _PATTERN, _LOCAL_BASE = "attention.scale", "attention.sliding_window_pattern", "rope.freq_base_swa"


def _read_scale(keys: MetadataKeys, fields: Config, largest: int) -> Config:
    """Only the model of `largest` layers divides its scores by something else than the root of its heads'
    size, and its files do not say so."""
    scalar = integer(fields, "head_dim")
    if fields["num_hidden_layers"] == largest:
        scalar = integer(fields, "hidden_size") // integer(fields, "num_attention_heads")
    scale = keys.number(_SCALE, 0.0)
    return {
        "query_pre_attn_scalar": scale**-2 if scale else scalar,
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _write_scale(config: Config) -> dict[str, object]:
    return {_SCALE: number(config, "query_pre_attn_scalar", 256.0) ** -0.5}


def _read_gemma2(keys: MetadataKeys, fields: Config) -> Config:
    return _read_scale(keys, fields, largest=46)


def _read_gemma3(keys: MetadataKeys, fields: Config) -> Config:
    slides = keys.flags(_PATTERN, integer(fields, "num_hidden_layers"))
    pattern: Config = {}
    if slides is not None:
        types = ["sliding_attention" if windowed else "full_attention" for windowed in slides]
        pattern = {"layer_types": types}
    elif keys.has(_PATTERN):
        pattern = {"sliding_window_pattern": keys.integer(_PATTERN)}
    local = {"rope_type": "default", "rope_theta": keys.number(_LOCAL_BASE, 10000.0)}
    rope = {"full_attention": fields["rope_parameters"], "sliding_attention": local}
    return _read_scale(keys, fields, largest=62) | pattern | {"rope_parameters": rope}


def _write_gemma3(config: Config) -> dict[str, object]:
    keys = _write_scale(config)
    types = texts(config, "layer_types")
    if types is not None:
        keys[_PATTERN] = np.array([kind == "sliding_attention" for kind in types])
    else:
        keys[_PATTERN] = integer(config, "sliding_window_pattern", 6)
    full = find(config, "rope_parameters.full_attention")
    if isinstance(full, dict):
        full = cast(Config, full)
        local = cast(Config, find(config, "rope_parameters.sliding_attention") or {})
        keys |= {"rope.freq_base": number(full, "rope_theta", 1e6)} | scaling_keys(full)
        keys[_LOCAL_BASE] = number(local, "rope_theta", 1e4)
    else:
        keys["rope.freq_base"] = number(config, "rope_theta", 1e6)
        keys[_LOCAL_BASE] = number(config, "rope_local_base_freq", 1e4)
    return keys


ARCHITECTURES = (
    Architecture(
        name="gemma2",
        model_types=("gemma2",),
        top=TOP,
        block=_BLOCK,
        changes=_CHANGES,
        fields=(
            _WINDOW,
            ConfigField("attn_logit_softcapping", "attn_logit_softcapping", "number", 50.0),
            ConfigField("final_logit_softcapping", "final_logit_softcapping", "number", 30.0),
        ),
        known=frozenset({_SCALE}),
        read=_read_gemma2,
        write=_write_scale,
    ),
    Architecture(
        name="gemma3",
        model_types=("gemma3_text",),
        top=TOP,
        block=_BLOCK | HEAD_NORMS,
        changes=_CHANGES,
        fields=(
            _WINDOW,
            ConfigField("final_logit_softcapping", "final_logit_softcapping", "number", nullable=True),
        ),
        known=frozenset({_SCALE}),
        read=_read_gemma3,
        write=_write_gemma3,
    ),
)
