"""From the config of a Hugging Face checkpoint to the metadata keys of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, boolean, find, integer, number, numbers, texts
from headrace.weights.gguf.tensor_names import Architecture

Keys = dict[str, object]
_SAME = {  # field of config.json: key
    "hidden_size": "embedding_length",
    "n_embd": "embedding_length",
    "num_hidden_layers": "block_count",
    "n_layer": "block_count",
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "intermediate_size": "feed_forward_length",
    "ffn_hidden_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "sliding_window": "attention.sliding_window",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "first_k_dense_replace": "leading_dense_block_count",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "use_parallel_residual": "use_parallel_residual",
    "state_size": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
    "n_groups": "ssm.group_count",
    "num_heads": "ssm.time_step_rank",
}
_EPSILONS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
}
_FLOATS = frozenset(
    {"attention.scale", "embedding_scale", "residual_scale", "logit_scale", "expert_weights_scale"}
)


def metadata_of(config: Config, architecture: Architecture) -> Keys:
    """The keys that a checkpoint's config becomes. UnsupportedModel where a setting has no key in GGUF."""
    keys: Keys = {}
    fields = {**_SAME, **_EPSILONS}
    for field, key in fields.items():
        value = config.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            keys[key] = float(value) if key in _FLOATS or field in _EPSILONS else value
        elif isinstance(value, bool):
            keys[key] = value
    if config.get("use_sliding_window") is False:
        keys.pop("attention.sliding_window", None)
    if "ssm.state_size" not in keys:
        keys |= _heads(config, keys) | _rope(config)
    extra = _EXTRAS.get(architecture.model_type)
    if extra is not None:
        keys |= extra(config)
    found = {f"{architecture.name}.{key}": value for key, value in keys.items() if value is not None}
    return {"general.architecture": architecture.name, **found}


def _heads(config: Config, keys: Keys) -> Keys:
    hidden, heads = cast(int, keys["embedding_length"]), cast(int, keys["attention.head_count"])
    head_dim = integer(config, "head_dim", hidden // heads)
    share = number(config, "partial_rotary_factor", number(config, "rotary_pct", 1.0))
    return {
        "feed_forward_length": keys.get("feed_forward_length", 4 * hidden),
        "attention.head_count_kv": 1
        if config.get("multi_query")
        else keys.get("attention.head_count_kv", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * share),
        "context_length": keys.get("context_length", 2048),
    }


def _rope(config: Config) -> Keys:
    table = cast(Config, find(config, "rope_parameters") or find(config, "rope_scaling") or {})
    if "full_attention" in table:
        return {}  # by kind of layer: _gemma3 reads it
    theta = number(config, "rope_theta", number(config, "rotary_emb_base", 10000.0))
    keys: Keys = {"rope.freq_base": number(table, "rope_theta", theta)}
    return keys | _scaling(table)


def _scaling(table: Config) -> Keys:
    kind = table.get("rope_type", table.get("type", "default"))
    if kind in ("default", "llama3", "longrope", "divided"):  # the last three are tensors
        attention = table.get("attention_factor")
        return {"rope.scaling.attn_factor": float(attention)} if isinstance(attention, float) else {}
    keys: Keys = {"rope.scaling.type": kind, "rope.scaling.factor": number(table, "factor")}
    if kind == "linear":
        return keys
    if kind != "yarn" or table.get("attention_factor") is not None:
        raise UnsupportedModel(
            f"the rope scaling {table!r:.100} has no keys in GGUF: write safetensors instead"
        )
    original = integer(table, "original_max_position_embeddings", maximum=1 << 30)
    return keys | {
        "rope.scaling.original_context_length": original,
        "rope.scaling.yarn_beta_fast": number(table, "beta_fast", 32.0),
        "rope.scaling.yarn_beta_slow": number(table, "beta_slow", 1.0),
    }


def _gemma(config: Config) -> Keys:
    return {"attention.scale": number(config, "query_pre_attn_scalar", 256.0) ** -0.5}


def _gemma3(config: Config) -> Keys:
    keys = _gemma(config)
    types = texts(config, "layer_types")
    if types is not None:
        keys["attention.sliding_window_pattern"] = np.array([kind == "sliding_attention" for kind in types])
    else:
        keys["attention.sliding_window_pattern"] = integer(config, "sliding_window_pattern", 6)
    full = find(config, "rope_parameters.full_attention")
    if isinstance(full, dict):
        full = cast(Config, full)
        keys |= {"rope.freq_base": number(full, "rope_theta", 1e6)} | _scaling(full)
        local = find(config, "rope_parameters.sliding_attention")
        keys["rope.freq_base_swa"] = number(cast(Config, local or {}), "rope_theta", 1e4)
    else:
        keys["rope.freq_base"] = number(config, "rope_theta", 1e6)
        keys["rope.freq_base_swa"] = number(config, "rope_local_base_freq", 1e4)
    return keys


def _smollm3(config: Config) -> Keys:
    layers = integer(config, "num_hidden_layers")
    rotates = config.get("no_rope_layers")
    if isinstance(rotates, list) and cast("list[int]", rotates)[:layers] != [
        int((layer + 1) % 4 != 0) for layer in range(layers)
    ]:
        raise UnsupportedModel(
            "which layers rotate has no key in GGUF but for every fourth: write safetensors instead"
        )
    return {
        "rope.freq_base": number(
            config, "rope_theta", number(cast(Config, config.get("rope_parameters") or {}), "rope_theta", 2e6)
        )
    }


def _phi3(config: Config) -> Keys:
    context = integer(config, "original_max_position_embeddings", 0, minimum=0)
    return {"rope.scaling.original_context_length": context} if context else {}


def _qwen(config: Config) -> Keys:
    if boolean(config, "use_sliding_window", False):
        raise UnsupportedModel("which layers have a window has no key in GGUF: write safetensors instead")
    return {"attention.sliding_window": None}


def _qwen_moe(config: Config) -> Keys:
    if config.get("mlp_only_layers") or integer(config, "decoder_sparse_step", 1) != 1:
        raise UnsupportedModel("which layers have experts has no key in GGUF: write safetensors instead")
    return _qwen(config)


def _gpt_neox(config: Config) -> Keys:
    if config.get("hidden_act", "gelu") != "gelu":
        raise UnsupportedModel(
            f"the activation {config['hidden_act']!r} has no key in GGUF: write safetensors instead"
        )
    return {"use_parallel_residual": boolean(config, "use_parallel_residual", True)}


def _deepseek(config: Config) -> Keys:
    rope_dim, nope = integer(config, "qk_rope_head_dim"), integer(config, "qk_nope_head_dim")
    keys: Keys = {
        "rope.dimension_count": rope_dim,
        "attention.key_length": nope + rope_dim,
        "attention.value_length": integer(config, "v_head_dim"),
        "expert_gating_func": 2,
    }
    if not boolean(config, "rope_interleave", True):
        raise UnsupportedModel(
            "halves that rotate instead of neighbors have no key in GGUF: write safetensors"
        )
    table = cast(Config, find(config, "rope_parameters") or find(config, "rope_scaling") or {})
    scale = number(table, "mscale_all_dim", 0.0)
    if scale != number(table, "mscale", scale):
        raise UnsupportedModel(
            "mscale that is not mscale_all_dim has no key in GGUF: write safetensors instead"
        )
    return keys | ({"rope.scaling.yarn_log_multiplier": 0.1 * scale} if scale else {})


def _mamba2(config: Config) -> Keys:
    if config.get("time_step_limit") not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise UnsupportedModel("limits of the time steps have no key in GGUF: write safetensors instead")
    hidden = integer(config, "hidden_size")
    return {
        "ssm.inner_size": int(number(config, "expand", 2.0) * hidden),
        "attention.layer_norm_rms_epsilon": number(config, "layer_norm_epsilon", 1e-5),
        "attention.layer_norm_epsilon": None,
        "context_length": integer(config, "max_position_embeddings", 1 << 20),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "vocab_size": integer(config, "vocab_size"),
    }


_EXTRAS: Mapping[str, Callable[[Config], Keys]] = {
    "gemma2": _gemma,
    "gemma3_text": _gemma3,
    "smollm3": _smollm3,
    "phi3": _phi3,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen3_moe": _qwen_moe,
    "gpt_neox": _gpt_neox,
    "deepseek_v3": _deepseek,
    "mamba2": _mamba2,
}


def long_rope_factors(config: Config, rotary_dim: int) -> dict[str, np.ndarray]:
    """The two lists of divisors of longrope, by the names of their tensors; empty for other scalings."""
    table = cast(Config, find(config, "rope_parameters") or find(config, "rope_scaling") or {})
    if table.get("rope_type", table.get("type")) not in ("longrope", "su"):
        return {}
    return {
        f"rope_factors_{kind}.weight": np.array(
            numbers(table, f"{kind}_factor", rotary_dim // 2, above=0), np.float32
        )
        for kind in ("long", "short")
    }
