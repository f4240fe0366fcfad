"""gpt-oss: attention sinks, experts with biases."""

from __future__ import annotations

from typing import cast

from headrace.weights.config_json import Config
from headrace.weights.gguf.architecture import (
    ATTENTION,
    EXPERTS,
    SLIDING_WINDOW,
    TOP,
    Architecture,
    ConfigField,
)
from headrace.weights.gguf.metadata_keys import MetadataKeys


def _read(keys: MetadataKeys, fields: Config) -> Config:
    rope = cast(Config, fields["rope_parameters"])
    return {
        # As its config.json says; files have no key for it.
        "rope_parameters": {**rope, "truncate": False} if rope["rope_type"] == "yarn" else rope,
        "intermediate_size": keys.integer("expert_feed_forward_length"),
        "separate_experts": True,
    }


ARCHITECTURES = (
    Architecture(
        name="gpt-oss",
        model_types=("gpt_oss",),
        top=TOP,
        block=ATTENTION
        | {
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
        },
        experts=EXPERTS,
        fields=(
            SLIDING_WINDOW,
            ConfigField("num_local_experts", "expert_count"),
            ConfigField("num_experts_per_tok", "expert_used_count"),
        ),
        biases={"attention_bias": "attn_q"},
        read=_read,
    ),
)
