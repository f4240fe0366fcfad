"""What single architectures keep in their GGUF keys, or take for granted, beside the sizes that all have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config as Fields
from headrace.weights.config_json import integer
from headrace.weights.gguf.keys import MetadataKeys


class Family(Struct, frozen=True):
    """`read(keys, fields)` gives the fields of config.json that differ from `fields`, the common ones.
    `known`: keys that change what a model computes and that it minds. `eps`: the epsilon's field."""

    read: Callable[[MetadataKeys, Fields], Fields]
    known: frozenset[str] = frozenset()
    eps: str = "rms_norm_eps"


def _llama(keys: MetadataKeys, fields: Fields) -> Fields:
    window = keys.integer("attention.sliding_window", 0)
    found: Fields = {"model_type": "mistral", "sliding_window": window} if window else {}
    if keys.number("expert_count", 0):
        found |= {
            "model_type": "mixtral",
            "num_local_experts": keys.integer("expert_count"),
            "num_experts_per_tok": keys.integer("expert_used_count"),
        }
    return found


def _plain(keys: MetadataKeys, fields: Fields) -> Fields:
    return {}


def _granite(keys: MetadataKeys, fields: Fields) -> Fields:
    head_dim = integer(fields, "head_dim")
    return {
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "attention_multiplier": keys.number("attention.scale", head_dim**-0.5),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logits_scaling": keys.number("logit_scale", 1.0),
    }


def _smollm3(keys: MetadataKeys, fields: Fields) -> Fields:
    window = keys.integer("attention.sliding_window", 0)
    slides: Fields = {"use_sliding_window": True, "sliding_window": window} if window else {}
    return {"no_rope_layer_interval": 4} | slides


def _phi3(keys: MetadataKeys, fields: Fields) -> Fields:
    window = keys.integer("attention.sliding_window", 0)
    context = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    return _partly_rotated(keys, fields, "partial_rotary_factor") | {
        "sliding_window": window or None,
        "original_max_position_embeddings": context,
    }


def _gemma2(keys: MetadataKeys, fields: Fields) -> Fields:
    found = _gemma(keys, fields, largest=46)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if keys.has(key):
            found[key] = keys.number(key)
    return found


def _gemma3(keys: MetadataKeys, fields: Fields) -> Fields:
    layers = integer(fields, "num_hidden_layers")
    slides = keys.flags("attention.sliding_window_pattern", layers)
    pattern: Fields = {}
    if slides is not None:
        types = ["sliding_attention" if windowed else "full_attention" for windowed in slides]
        pattern = {"layer_types": types}
    elif keys.has("attention.sliding_window_pattern"):
        pattern = {"sliding_window_pattern": keys.integer("attention.sliding_window_pattern")}
    rope = cast(Fields, fields["rope_parameters"])
    local = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10000.0)}
    cap = keys.number("final_logit_softcapping", 0.0)
    return (
        _gemma(keys, fields, largest=62)
        | pattern
        | {"final_logit_softcapping": cap or None}
        | {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}
    )


def _gemma(keys: MetadataKeys, fields: Fields, *, largest: int) -> Fields:
    """Only the model of `largest` layers divides its scores by something else than the root of its heads'
    size, and its files do not say so."""
    scalar = integer(fields, "head_dim")
    if fields["num_hidden_layers"] == largest:
        scalar = integer(fields, "hidden_size") // integer(fields, "num_attention_heads")
    scale = keys.number("attention.scale", 0.0)
    return {
        "query_pre_attn_scalar": scale**-2 if scale else scalar,
        "sliding_window": keys.integer("attention.sliding_window", 4096),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _starcoder2(keys: MetadataKeys, fields: Fields) -> Fields:
    window = keys.integer("attention.sliding_window", 0)
    return {
        "use_bias": fields["attention_bias"],
        "sliding_window": window or None,
        "hidden_act": "gelu_pytorch_tanh",
    }


def _gpt_neox(keys: MetadataKeys, fields: Fields) -> Fields:
    rope = cast(Fields, fields["rope_parameters"])
    return _partly_rotated(keys, fields, "rotary_pct") | {
        "use_parallel_residual": keys.flag("use_parallel_residual", True),
        "rotary_emb_base": rope["rope_theta"],
        "hidden_act": "gelu",
    }


def _gpt2(keys: MetadataKeys, fields: Fields) -> Fields:
    return {"transposed_weights": False, "activation_function": "gelu_new"}


def _falcon(keys: MetadataKeys, fields: Fields) -> Fields:
    if (heads := fields["num_key_value_heads"]) != 1:
        raise UnsupportedModel(
            f"{keys.file} is a falcon with {heads} key heads, which is not supported: use 7b, which has one"
        )
    return {
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "alibi": False,
        "bias": fields["attention_bias"],
        "ffn_hidden_size": fields["intermediate_size"],
    }


def _qwen3_moe(keys: MetadataKeys, fields: Fields) -> Fields:
    return {
        "num_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _deepseek(keys: MetadataKeys, fields: Fields) -> Fields:
    rope_dim = keys.integer("rope.dimension_count")
    rope = cast(Fields, fields["rope_parameters"])
    if keys.has("rope.scaling.yarn_log_multiplier"):
        scale = keys.number("rope.scaling.yarn_log_multiplier") / 0.1
        rope = {**rope, "mscale": scale, "mscale_all_dim": scale}
    if keys.integer("expert_gating_func", 2) != 2:
        raise UnsupportedModel(f"{keys.file} routes with a softmax (DeepSeek 2): not supported as GGUF")
    return {
        "rope_parameters": rope,
        "q_lora_rank": keys.integer("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
        - rope_dim,
        "v_head_dim": keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
        "num_key_value_heads": fields["num_attention_heads"],
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0),
        "n_routed_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "n_shared_experts": keys.integer("expert_shared_count", 0),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
    }


def _mamba2(keys: MetadataKeys, fields: Fields) -> Fields:
    inner, heads = keys.integer("ssm.inner_size"), keys.integer("ssm.time_step_rank")
    hidden = integer(fields, "hidden_size")
    return {
        "expand": inner / hidden if inner % hidden else inner // hidden,
        "num_heads": heads,
        "head_dim": inner // heads,
        "n_groups": keys.integer("ssm.group_count", 1),
        "state_size": keys.integer("ssm.state_size"),
        "conv_kernel": keys.integer("ssm.conv_kernel"),
    }


def _partly_rotated(keys: MetadataKeys, fields: Fields, name: str) -> Fields:
    head_dim = integer(fields, "head_dim")
    return {name: keys.integer("rope.dimension_count", head_dim) / head_dim}


_WINDOW = "attention.sliding_window"
FAMILIES: Mapping[str, Family] = {
    "llama": Family(_llama, frozenset({_WINDOW, "expert_count"})),
    "qwen2": Family(_plain),
    "qwen3": Family(_plain),
    "granite": Family(
        _granite, frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale"})
    ),
    "smollm3": Family(_smollm3, frozenset({_WINDOW})),
    "olmo2": Family(_plain),
    "phi3": Family(_phi3, frozenset({_WINDOW, "rope.dimension_count", "rope.scaling.attn_factor"})),
    "gemma2": Family(
        _gemma2,
        frozenset({_WINDOW, "attention.scale", "attn_logit_softcapping", "final_logit_softcapping"}),
    ),
    "gemma3": Family(_gemma3, frozenset({_WINDOW, "attention.scale", "final_logit_softcapping"})),
    "starcoder2": Family(_starcoder2, frozenset({_WINDOW}), "norm_epsilon"),
    "gptneox": Family(_gpt_neox, frozenset({"rope.dimension_count"}), "layer_norm_eps"),
    "gpt2": Family(_gpt2, eps="layer_norm_epsilon"),
    "falcon": Family(_falcon, eps="layer_norm_epsilon"),
    "qwen3moe": Family(_qwen3_moe, frozenset({"expert_count"})),
    "deepseek2": Family(
        _deepseek,
        frozenset({"expert_count", "rope.dimension_count", "attention.value_length"}),
    ),
    "mamba2": Family(_mamba2, eps="layer_norm_epsilon"),
}
