"""From the metadata and tensor names of a GGUF file to those of a Hugging Face checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.gguf import corrupt_metadata
from headrace.weights.tensor_file import TensorInfo

ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Architecture:
    """`general.architecture` of GGUF and the model_type it stands for. `paired_rows`: the rows of each query
    and key head are reordered, so that the two entries that a rotation mixes are neighbours."""

    name: str
    model_type: str
    paired_rows: bool = False


ARCHITECTURES = {
    known.name: known
    for known in (
        Architecture("llama", "llama", paired_rows=True),
        Architecture("qwen2", "qwen2"),
        Architecture("qwen3", "qwen3"),
    )
}
# Keys (after the architecture's name) that change what a model computes in ways its model file here does not.
_REFUSED = {
    "expert_count": "a mixture of experts",
    "attention.scale": "its own attention scale",
    "attention.max_alibi_bias": "ALiBi",
    "attention.clamp_kqv": "clamped queries, keys and values",
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "logit_scale": "scaled logits",
    "embedding_scale": "scaled embeddings",
    "residual_scale": "scaled residuals",
    "nextn_predict_layers": "layers that predict further tokens",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)\.(weight|bias)")
_TOP_NAME = re.compile(r"([a-z_]+)\.(weight|bias)")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def architecture_of(metadata: Mapping[str, object], file: str) -> Architecture:
    """The architecture of a file; UnsupportedModel names it and the known ones."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise corrupt_metadata(file, "general.architecture", name, "the name of an architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file} holds the architecture {name[:60]!r}, which is not supported as GGUF; known: "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def checkpoint_name(name: str, file: str) -> str:
    """The Hugging Face name of a tensor; UnsupportedModel where it has no place in these architectures."""
    block = _BLOCK_NAME.fullmatch(name)
    if block is not None and block[2] in _BLOCK:
        return f"model.layers.{block[1]}.{_BLOCK[block[2]]}.{block[3]}"
    top = _TOP_NAME.fullmatch(name)
    if top is not None and top[1] in _TOP:
        return f"{_TOP[top[1]]}.{top[2]}"
    raise UnsupportedModel(
        f"{file} holds the tensor {name!r}, for which this architecture has no place here: use a checkpoint "
        "of the plain model"
    )


def config_of(
    metadata: Mapping[str, object],
    architecture: Architecture,
    tensors: Mapping[str, TensorInfo],
    file: str,
) -> dict[str, object]:
    """The fields of config.json; `tensors` are by Hugging Face name."""
    keys = _Keys(metadata, architecture.name, file)
    for key, what in _REFUSED.items():
        if keys.number(key, 0.0):
            raise UnsupportedModel(
                f"{file} is a {architecture.name} with {what} ({key}), which is not supported"
            )
    table = tensors.get("model.embed_tokens.weight")
    if table is None or len(table.shape) != 2:
        raise CorruptFile(f"{file} has no matrix 'token_embd.weight': fetch the whole model again")
    config = _sizes(keys) | {
        "model_type": architecture.model_type,
        "vocab_size": table.shape[0],
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
        "rope_parameters": _rope(keys),
    }
    window = keys.integer("attention.sliding_window", 0)
    if window:
        if architecture.name != "llama":
            raise UnsupportedModel(
                f"{file} is a {architecture.name} with a sliding window: not supported as GGUF"
            )
        config |= {"model_type": "mistral", "sliding_window": window}
    return config


def rope_with_factors(rope: dict[str, object], factors: NDArray[np.float32], file: str) -> dict[str, object]:
    """`rope_parameters` with one divisor per frequency, as ROPE_FACTORS holds them for Llama 3's scaling."""
    if rope["rope_type"] != "default":
        raise CorruptFile(
            f"{file} has {ROPE_FACTORS!r} and another rope scaling, one expected: fetch it again"
        )
    return rope | {"rope_type": "divided", "divisors": [float(factor) for factor in factors]}


def generation_config_of(metadata: Mapping[str, object], file: str) -> dict[str, object] | None:
    """The recommended sampling parameters, under their names in generation_config.json."""
    keys = _Keys(metadata, "general", file)
    found = {name: keys.number(f"sampling.{key}", math.nan) for key, name in _SAMPLING.items()}
    given: dict[str, object] = {name: value for name, value in found.items() if not math.isnan(value)}
    if "top_k" in given:
        given["top_k"] = keys.integer("sampling.top_k")
    return given or None


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed reading of the keys that begin with one prefix; CorruptFile names the key and what it holds."""

    metadata: Mapping[str, object]
    prefix: str
    file: str

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; also one per layer, where all are equal."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray):
            per_layer = cast("list[object]", np.unique(cast("NDArray[np.generic]", value)).tolist())
            if len(per_layer) != 1:
                raise UnsupportedModel(f"{self.file} has another {key} in each layer: not supported")
            value = per_layer[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise corrupt_metadata(self.file, f"{self.prefix}.{key}", value, "an integer from 0 to 2^31")
        if value == 0 and default != 0:
            raise corrupt_metadata(self.file, f"{self.prefix}.{key}", value, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number. What went through float32 comes back as the decimal that config.json had."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
            raise corrupt_metadata(self.file, f"{self.prefix}.{key}", value, "a finite number")
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return float(str(single)) if float(single) == value else float(value)


def _sizes(keys: _Keys) -> dict[str, object]:
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{keys.file} has {key} {keys.integer(key)} for heads of {head_dim}: not supported"
            )
    return {
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": keys.integer("feed_forward_length"),
        "max_position_embeddings": keys.integer("context_length"),
    }


def _rope(keys: _Keys) -> dict[str, object]:
    table: dict[str, object] = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 10000.0)}
    kind = keys.metadata.get(f"{keys.prefix}.rope.scaling.type", "none")
    if keys.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{keys.file} scales attention with its rope (attn_factor): not supported")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{keys.file} has the rope scaling {kind!r:.40}: not supported as GGUF")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "yarn":
        context = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
        return table | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": context,
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    if kind == "linear" or factor not in (0.0, 1.0):
        return table | {"rope_type": "linear", "factor": factor}
    return table
