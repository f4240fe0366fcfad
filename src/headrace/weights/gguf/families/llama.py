"""Llama; Mistral and Mixtral, whose files say that they are a Llama; Granite and SmolLM3, built like it."""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, integer, number
from headrace.weights.gguf.architecture import (
    ATTENTION,
    LLAMA,
    PRE_NORMS,
    SLIDING_WINDOW,
    TOP,
    Architecture,
    ConfigField,
    no_fields,
)
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.rope_keys import rope_table
from headrace.weights.row_order import RowOrder

_ROTATES_NOT = 4  # of SmolLM3 every fourth layer, which its files do not say


def _read_llama(keys: MetadataKeys, fields: Config) -> Config:
    return {"model_type": "mistral"} if fields["sliding_window"] else {}


def _read_granite(keys: MetadataKeys, fields: Config) -> Config:
    plain = integer(fields, "head_dim") ** -0.5
    return {"attention_multiplier": keys.number("attention.scale", plain)}


def _read_smollm3(keys: MetadataKeys, fields: Config) -> Config:
    slides: Config = {"use_sliding_window": True} if fields["sliding_window"] else {}
    return {"no_rope_layer_interval": _ROTATES_NOT} | slides


def _write_smollm3(config: Config) -> dict[str, object]:
    layers = integer(config, "num_hidden_layers")
    rotates = config.get("no_rope_layers")
    if isinstance(rotates, list) and cast("list[int]", rotates)[:layers] != [
        int((layer + 1) % _ROTATES_NOT != 0) for layer in range(layers)
    ]:
        raise UnsupportedModel(
            "which layers rotate has no key in GGUF but for every fourth: write safetensors instead"
        )
    theta = number(rope_table(config), "rope_theta", number(config, "rope_theta", 2e6))
    return {"rope.freq_base": theta}


_LLAMA = Architecture(
    name="llama",
    model_types=("llama", "mistral"),
    top=TOP,
    block=LLAMA,
    rows=RowOrder.PAIRS,  # of each head, entry j of the first half and entry j of the second are neighbors
    reordered=("self_attn.q_proj", "self_attn.k_proj"),
    fields=(SLIDING_WINDOW,),
    read=_read_llama,
)
ARCHITECTURES = (
    _LLAMA,
    replace(
        _LLAMA,
        model_types=("mixtral",),
        block=ATTENTION | PRE_NORMS | {"ffn_gate_inp": "block_sparse_moe.gate"},
        experts={
            "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
            "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
            "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
        },
        fields=(
            SLIDING_WINDOW,
            ConfigField("num_local_experts", "expert_count"),
            ConfigField("num_experts_per_tok", "expert_used_count"),
        ),
        read=no_fields,
    ),
    replace(
        _LLAMA,
        name="granite",
        model_types=("granite",),
        fields=(
            ConfigField("attention_multiplier", "attention.scale", "number", 0.0),
            ConfigField("embedding_multiplier", "embedding_scale", "number", 1.0),
            ConfigField("residual_multiplier", "residual_scale", "number", 1.0),
            ConfigField("logits_scaling", "logit_scale", "number", 1.0),
        ),
        read=_read_granite,
    ),
    replace(_LLAMA, name="smollm3", model_types=("smollm3",), read=_read_smollm3, write=_write_smollm3),
)
