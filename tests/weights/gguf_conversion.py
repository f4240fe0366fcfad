"""Goldens as GGUF files, written with the package gguf as llama.cpp's converter does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

gguf = pytest.importorskip("gguf", reason="the writer and the names are those of the package gguf")
Config = dict[str, Any]
Keys = dict[str, Any]


def paired(config: Config, name: str, values: np.ndarray) -> np.ndarray:
    """LlamaModel.permute: entry j of the second half of a head next to entry j of the first."""
    if "q_proj" not in name and "k_proj" not in name:
        return values
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def plus_one(config: Config, name: str, values: np.ndarray) -> np.ndarray:
    return values + np.float32(1) if name.endswith("norm.weight") else values


def three_stacks(config: Config, name: str, values: np.ndarray) -> np.ndarray:
    if "query_key_value" not in name:
        return values
    heads = config["num_attention_heads"]
    return values.reshape(heads, 3, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def turned(config: Config, name: str, values: np.ndarray) -> np.ndarray:
    return values.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else values


def state_space(config: Config, name: str, values: np.ndarray) -> np.ndarray:
    """A itself instead of its logarithm; single numbers of heads as columns, norms by groups."""
    if name.endswith("A_log"):
        values = -np.exp(values)
    if name.endswith(("A_log", "mixer.D")):
        return values.reshape(-1, 1)
    if name.endswith("mixer.norm.weight"):
        return values.reshape(config["n_groups"], -1)
    return values.squeeze(1) if name.endswith("conv1d.weight") else values


CHANGES: dict[str, Callable[[Config, str, np.ndarray], np.ndarray]] = {
    "LLAMA": paired,
    "GRANITE": paired,
    "SMOLLM3": paired,
    "GEMMA2": plus_one,
    "GEMMA3": plus_one,
    "GPTNEOX": three_stacks,
    "GPT2": turned,
    "MAMBA2": state_space,
}


def keys_of(config: Config) -> Keys:
    """The keys that set_gguf_parameters of each model writes."""
    if config["model_type"] == "mamba2":
        return mamba_keys(config)
    get = config.get
    hidden = get("hidden_size") or config["n_embd"]
    heads = get("num_attention_heads") or config["n_head"]
    head_dim = get("head_dim") or hidden // heads
    rope = get("rope_parameters") or get("rope_scaling") or {}
    keys: Keys = {
        "context_length": get("max_position_embeddings") or get("n_positions") or 2048,
        "embedding_length": hidden,
        "block_count": get("num_hidden_layers") or config["n_layer"],
        "feed_forward_length": get("intermediate_size") or 4 * hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if get("multi_query") else get("num_key_value_heads", heads),
        "rope.dimension_count": int(head_dim * get("partial_rotary_factor", get("rotary_pct", 1.0))),
        "rope.freq_base": get("rope_theta") or get("rotary_emb_base") or rope.get("rope_theta") or 10000.0,
        "attention.sliding_window": get("sliding_window"),
        "attention.scale": get("attention_multiplier"),
        "embedding_scale": get("embedding_multiplier"),
        "residual_scale": get("residual_multiplier"),
        "logit_scale": get("logits_scaling"),
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "expert_count": get("num_local_experts") or get("num_experts"),
        "expert_used_count": get("num_experts_per_tok"),
        "expert_feed_forward_length": get("moe_intermediate_size"),
    }
    if get("head_dim"):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if "rms_norm_eps" in config and config["model_type"] != "starcoder2":
        keys["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    else:
        names = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")
        keys["attention.layer_norm_epsilon"] = next(config[name] for name in names if name in config)
    if config["model_type"].startswith("gemma"):  # the files of released models need no key for this
        keys["attention.scale"] = config["query_pre_attn_scalar"] ** -0.5
    if config["model_type"] == "gemma3_text":
        keys |= gemma3_keys(config)
    if config["model_type"] in ("deepseek_v2", "deepseek_v3"):
        keys |= deepseek_keys(config)
    if config["model_type"] == "gpt_oss":
        keys |= gpt_oss_keys(config)
    if config["model_type"] == "gpt_neox":
        keys["use_parallel_residual"] = get("use_parallel_residual", True)
    return {key: value for key, value in keys.items() if value is not None}


def mamba_keys(config: Config) -> Keys:
    inner = config["num_heads"] * config["head_dim"]
    return {
        "context_length": 2**20,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config["num_hidden_layers"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": inner,
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["num_heads"],
        "ssm.group_count": config["n_groups"],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
    }


def deepseek_keys(config: Config) -> Keys:
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    keys = {
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.key_length": nope + rope,
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": rope,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2,
    }
    scaling = config.get("rope_scaling") or {}
    if scaling:
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(scaling["factor"]),
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * scaling["mscale_all_dim"],
        }
    return keys


def gpt_oss_keys(config: Config) -> Keys:
    scaling = config["rope_scaling"]
    return {
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
    }


def latent_keys(config: Config) -> Keys:
    """What DeepseekV2Model.set_gguf_parameters writes since 2025: sizes of the absorbed form, and others for
    those of a head; the routing function only where it is a sigmoid."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
    }


def gemma3_keys(config: Config) -> Keys:
    if "layer_types" in config:
        nested = config["rope_parameters"]
        return {
            "attention.sliding_window_pattern": [
                kind == "sliding_attention" for kind in config["layer_types"]
            ],
            "rope.freq_base": nested["full_attention"]["rope_theta"],
        }
    return {
        "attention.sliding_window_pattern": config["sliding_window_pattern"],
        "rope.scaling.type": "linear",
        "rope.scaling.factor": config["rope_scaling"]["factor"],
    }


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts of a layer become one tensor, under the name that the converter gives it."""
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if expert is None:
            found[name] = values
        else:
            merged = f"{expert[1]}.{expert[3]}".replace("block_sparse_moe", "feed_forward")
            if "feed_forward" in merged:
                merged = merged.removeprefix("model.")
            found.setdefault(merged, {})[int(expert[2])] = values
    return {
        name: np.stack([values[number] for number in sorted(values)]) if isinstance(values, dict) else values
        for name, values in found.items()
    }


def split_kv_b(config: Config, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """DeepseekV2Model.modify_tensors since 2025: per head, what makes keys (turned) and what makes values."""
    found: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            found[name] = values
            continue
        heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
        halves = values.reshape(heads, -1, values.shape[1])
        found[name.replace("kv_b", "k_b")] = halves[:, :keys].transpose(0, 2, 1)
        found[name.replace("kv_b", "v_b")] = halves[:, keys:]
    return found


def split_experts(config: Config, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GptOssModel.modify_tensors: gate and up are apart, matrices are [outputs, inputs]."""
    found: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        at, _, kind = name.partition("mlp.experts.")
        if not kind:
            found[name.replace("sinks", "sinks.weight")] = values
            continue
        end = ".bias" if kind.endswith("_bias") else ".weight"
        values = values if end == ".bias" else values.transpose(0, 2, 1)
        if kind.startswith("down"):
            found[f"{at}mlp.experts.down_proj{end}"] = values
        else:
            found[f"{at}mlp.experts.gate_proj{end}"] = values[:, 0::2]
            found[f"{at}mlp.experts.up_proj{end}"] = values[:, 1::2]
    return found


SPLITS = {"DEEPSEEK2": split_kv_b, "GPT_OSS": split_experts}


def convert(
    folder: Path,
    kind: str,
    path: Path,
    *,
    splits: bool = False,
    more: Keys | None = None,
    tokenizer: Keys | None = None,
    experts: str = "F32",
) -> None:
    """The golden as a GGUF file, written by the package; `splits` as converters do since 2025, `experts` in
    this type."""
    config = json.loads((folder / "config.json").read_text())
    arch = gguf.MODEL_ARCH[kind]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    for key, value in (keys_of(config) | (more or {})).items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add.get(type(value), writer.add_array)(f"{gguf.MODEL_ARCH_NAMES[arch]}.{key}", value)
    for key, value in (tokenizer or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    names = gguf.get_tensor_name_map(arch, config.get("num_hidden_layers") or config["n_layer"])
    tensors = load_file(folder / "model.safetensors")
    tensors = SPLITS[kind](config, tensors) if splits else tensors
    for name, values in stacked(tensors).items():
        called = name.replace("dt_bias", "dt_proj.bias").replace("correction_bias", "correction.bias")
        stored = names.get_name(called, (".weight", ".bias"))
        assert stored is not None, name
        values = CHANGES.get(kind, lambda config, name, values: values)(config, name, values)
        values = np.ascontiguousarray(values, np.float32)
        if experts != "F32" and stored.endswith("_exps.weight"):
            block_type = gguf.GGMLQuantizationType[experts]
            writer.add_tensor(stored, gguf.quants.quantize(values, block_type), raw_dtype=block_type)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
