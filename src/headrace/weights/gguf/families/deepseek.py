"""DeepSeek 2 Lite and 3: latent attention and groups of experts."""

from __future__ import annotations

from typing import cast

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, boolean, integer, number
from headrace.weights.gguf.architecture import EXPERTS, MLP, PRE_NORMS, TOP, Architecture, ConfigField
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.rope_keys import rope_table

_SOFTMAX, _SIGMOID = 1, 2  # llama.cpp's numbers of the function that routes
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def _read(keys: MetadataKeys, fields: Config) -> Config:
    rope_dim = keys.integer("rope.dimension_count")
    rope = cast(Config, fields["rope_parameters"])
    if keys.has(_LOG_MULTIPLIER):
        scale = keys.number(_LOG_MULTIPLIER) / 0.1
        rope = {**rope, "mscale": scale, "mscale_all_dim": scale}
    key_length = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    return {
        "rope_parameters": rope,
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key_length - rope_dim,
        "v_head_dim": keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
        "num_key_value_heads": fields["num_attention_heads"],
        **_router(keys, fields),
    }


def _router(keys: MetadataKeys, fields: Config) -> Config:
    """Files without the key are DeepSeek 2."""
    kind = keys.integer("expert_gating_func", 0) or _SOFTMAX
    if kind == _SIGMOID:
        return {}
    if kind != _SOFTMAX or integer(fields, "n_group") > 1:
        raise UnsupportedModel(
            f"{keys.file} chooses experts by function {kind} from {fields['n_group']} groups, which is not"
            " supported: by sigmoid from groups (DeepSeek 3) and by softmax from all (DeepSeek 2 Lite) is"
        )
    return {"model_type": "deepseek_v2", "topk_method": "greedy"}


def _write(config: Config) -> dict[str, object]:
    rope_dim = integer(config, "qk_rope_head_dim")
    keys: dict[str, object] = {
        "rope.dimension_count": rope_dim,
        "attention.key_length": integer(config, "qk_nope_head_dim") + rope_dim,
        "attention.value_length": integer(config, "v_head_dim"),
        "expert_gating_func": _SOFTMAX if config.get("model_type") == "deepseek_v2" else _SIGMOID,
    }
    if not boolean(config, "rope_interleave", True):
        raise UnsupportedModel(
            "halves that rotate instead of neighbors have no key in GGUF: write safetensors"
        )
    table = rope_table(config)
    scale = number(table, "mscale_all_dim", 0.0)
    if scale != number(table, "mscale", scale):
        raise UnsupportedModel(
            "mscale that is not mscale_all_dim has no key in GGUF: write safetensors instead"
        )
    return keys | ({_LOG_MULTIPLIER: 0.1 * scale} if scale else {})


ARCHITECTURES = (
    Architecture(
        name="deepseek2",
        model_types=("deepseek_v3", "deepseek_v2"),
        top=TOP,
        block=PRE_NORMS
        | MLP
        | {
            "attn_q": "self_attn.q_proj",
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_kv_b": "self_attn.kv_b_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_gate_inp": "mlp.gate",
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
            "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
            "ffn_up_shexp": "mlp.shared_experts.up_proj",
            "ffn_down_shexp": "mlp.shared_experts.down_proj",
        },
        # Files since 2025 have kv_b in two parts: of each head a matrix for keys, turned, and one for values.
        experts=EXPERTS | {"attn_k_b": "self_attn.k_b_proj.{}", "attn_v_b": "self_attn.v_b_proj.{}"},
        forms={"split_kv_b": "self_attn.k_b_proj.0.weight"},
        fields=(
            ConfigField("q_lora_rank", "attention.q_lora_rank", nullable=True),
            ConfigField("kv_lora_rank", "attention.kv_lora_rank"),
            ConfigField("first_k_dense_replace", "leading_dense_block_count", default=0),
            ConfigField("n_routed_experts", "expert_count"),
            ConfigField("num_experts_per_tok", "expert_used_count"),
            ConfigField("n_shared_experts", "expert_shared_count", default=0),
            ConfigField("moe_intermediate_size", "expert_feed_forward_length"),
            ConfigField("n_group", "expert_group_count", default=1),
            ConfigField("topk_group", "expert_group_used_count", default=1),
            ConfigField("routed_scaling_factor", "expert_weights_scale", "number", 1.0),
            ConfigField("norm_topk_prob", "expert_weights_norm", "flag", False),
        ),
        known=frozenset({"rope.dimension_count", "attention.value_length"}),
        read=_read,
        write=_write,
    ),
)
