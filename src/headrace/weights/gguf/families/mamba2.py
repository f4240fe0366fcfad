"""Mamba 2: no attention; A itself instead of its logarithm, and some tensors in other shapes."""

from __future__ import annotations

import math

import numpy as np

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, integer, number
from headrace.weights.gguf.architecture import (
    RMS_NORM_KEY,
    Architecture,
    ConfigField,
    ShapeTransform,
    TensorTransform,
)
from headrace.weights.gguf.metadata_keys import MetadataKeys


def _read(keys: MetadataKeys, fields: Config) -> Config:
    inner, hidden = keys.integer("ssm.inner_size"), integer(fields, "hidden_size")
    return {
        "expand": inner / hidden if inner % hidden else inner // hidden,
        "head_dim": inner // integer(fields, "num_heads"),
    }


def _write(config: Config) -> dict[str, object]:
    if config.get("time_step_limit") not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise UnsupportedModel("limits of the time steps have no key in GGUF: write safetensors instead")
    return {
        "ssm.inner_size": int(number(config, "expand", 2.0) * integer(config, "hidden_size")),
        RMS_NORM_KEY: number(config, "layer_norm_epsilon", 1e-5),
        "context_length": integer(config, "max_position_embeddings", 1 << 20),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "vocab_size": integer(config, "vocab_size"),
    }


_COLUMN = ShapeTransform(lambda shape: (*shape, 1), lambda shape: (math.prod(shape),))
ARCHITECTURES = (
    Architecture(
        name="mamba2",
        model_types=("mamba2",),
        top={"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"},
        block={
            "attn_norm": "norm",
            "ssm_in": "mixer.in_proj",
            "ssm_conv1d": "mixer.conv1d",
            "ssm_dt.bias": "mixer.dt_bias",
            "ssm_a": "mixer.A_log",
            "ssm_d": "mixer.D",
            "ssm_norm": "mixer.norm",
            "ssm_out": "mixer.out_proj",
        },
        layers="backbone.layers",
        changes={"mixer.A_log": TensorTransform(lambda a: -np.exp(a), lambda a: np.log(-a))},
        shapes={
            "mixer.A_log": _COLUMN,
            "mixer.D": _COLUMN,
            "mixer.norm.weight": ShapeTransform(lambda shape: shape, lambda shape: (math.prod(shape),)),
            "mixer.conv1d.weight": ShapeTransform(
                lambda shape: (shape[0], shape[-1]), lambda shape: (shape[0], 1, *shape[1:])
            ),
        },
        fields=(
            ConfigField("num_heads", "ssm.time_step_rank"),
            ConfigField("n_groups", "ssm.group_count", default=1),
            ConfigField("state_size", "ssm.state_size"),
            ConfigField("conv_kernel", "ssm.conv_kernel"),
        ),
        biases={"use_bias": "ssm_in", "use_conv_bias": "ssm_conv1d"},
        epsilon=("layer_norm_epsilon", RMS_NORM_KEY),
        has_attention=False,
        read=_read,
        write=_write,
    ),
)
